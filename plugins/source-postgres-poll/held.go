package main

import (
	"bytes"
	"math"

	"github.com/relevo-io/relevo/internal/outbox"
)

// held are the keys, and the ids of events without one, that reads leave out. Not safe for concurrent use: engine.mu
// guards it.
//
// A released one is not simply read along again: a bound that moved while it was held has passed its rows. It is read
// by itself first, from its own floor and in order, until nothing of it is left; only then do ordinary reads see it.
// (The same as lowering the bound below its first row, without passing everybody else's rows again.)
type held struct {
	keys, ids map[string]*entry
	lists     map[listKey][]byte // made of keys and ids; dropped at each change
}

type entry struct {
	floor     int64 // nothing of it is left at or below; MinInt64: not known
	oldest    int64 // earliest time among what went back, µs since 1970; MaxInt64: none
	bucket    int   // where several relays share the outbox; -1: not known, its head is not in flight here
	releasing bool
	touched   bool // held again, or something went back, since releasing was called
}

type listKey struct {
	ids, releasing bool
	standIns       bool
}

func newHeld() *held { return &held{keys: map[string]*entry{}, ids: map[string]*entry{}} }

// hold starts to leave something out. floor is the bound now: nothing of it is unread below.
func (h *held) hold(in map[string]*entry, name string, floor int64) {
	h.lists = nil
	if e := in[name]; e != nil {
		e.releasing, e.touched = false, true // its rows are not all read: the floor stays
		return
	}
	in[name] = &entry{floor: floor, oldest: math.MaxInt64, bucket: -1}
}

// back notes a row that went back.
func (e *entry) back(order, at int64) {
	e.floor, e.oldest, e.touched = min(e.floor, order-1), min(e.oldest, at), true
}

func (h *held) release(in map[string]*entry, name string) {
	if e := in[name]; e != nil {
		e.releasing, h.lists = true, nil
	}
}

// waiting reports whether anything is to be read by itself.
func (h *held) waiting() bool {
	for _, m := range []map[string]*entry{h.keys, h.ids} {
		for _, e := range m {
			if e.releasing {
				return true
			}
		}
	}
	return false
}

// releasing are those that are to be read by themselves, by a read that begins now.
func (h *held) releasing() (entries []*entry, floor int64) {
	floor = math.MaxInt64
	for _, m := range []map[string]*entry{h.keys, h.ids} {
		for _, e := range m {
			if e.releasing {
				e.touched = false
				entries = append(entries, e)
				floor = min(floor, e.floor)
			}
		}
	}
	return entries, floor
}

// done forgets entries of which a read found nothing more, unless something happened to them since it began.
func (h *held) done(entries []*entry) {
	gone := map[*entry]bool{}
	for _, e := range entries {
		gone[e] = e.releasing && !e.touched
	}
	for _, m := range []map[string]*entry{h.keys, h.ids} {
		for name, e := range m {
			if gone[e] {
				delete(m, name)
				h.lists = nil
			}
		}
	}
}

// buckets are those of what is held, as far as they are known.
func (h *held) buckets() (s buckets) {
	for _, m := range []map[string]*entry{h.keys, h.ids} {
		for _, e := range m {
			if e.bucket >= 0 {
				s |= 1 << e.bucket
			}
		}
	}
	return s
}

// forgetFloors tells that rows of these buckets went unread for a while, and may be anywhere.
func (h *held) forgetFloors(s buckets) {
	for _, m := range []map[string]*entry{h.keys, h.ids} {
		for _, e := range m {
			if e.bucket < 0 || s.has(e.bucket) {
				e.floor = math.MinInt64
			}
		}
	}
}

// oldest is the earliest time among what went back; MaxInt64: none.
func (h *held) oldest() int64 {
	t := int64(math.MaxInt64)
	for _, m := range []map[string]*entry{h.keys, h.ids} {
		for _, e := range m {
			t = min(t, e.oldest)
		}
	}
	return t
}

// list is an array for a query: every name, or only the releasing ones; nil: it is empty. With o nil it is of texts.
func (h *held) list(k listKey, o *outbox.Operand) []byte {
	if l, ok := h.lists[k]; ok {
		return l
	}
	names := h.keys
	if k.ids {
		names = h.ids
	}
	l := []byte{'{'}
	for name, e := range names {
		switch {
		case k.releasing && !e.releasing:
		case o != nil:
			l = o.Append(l, []byte(name))
		case !bytes.Contains([]byte(name), []byte{0}):
			l = outbox.AppendArray(l, []byte(name))
		}
	}
	if l = append(l, '}'); len(l) == 2 {
		l = nil
	}
	if h.lists == nil {
		h.lists = map[listKey][]byte{}
	}
	h.lists[k] = l
	return l
}
