package main

import (
	"slices"
	"strconv"
)

// feed decides which event is next, as a table would that is read in order, with keys left out while they are held. An
// event is its number, from 1; its unit of order is its key, or itself when there are no keys.
type feed struct {
	keys   uint64 // 0: no keys
	end    uint64 // number of the last event; 0: no end
	cursor uint64 // the next event to read in passing

	held    map[string]*stash // by unit; what is left out
	catchUp []*stash          // released, oldest first: to be read before the cursor moves on
}

// stash is what is to be read of a unit before the cursor moves on: events that were returned, then those that the cursor
// has passed.
type stash struct {
	unit     string
	returned []uint64 // ascending; bounded by the window
	passed   uint64   // the first event that the cursor has passed by; 0: none
}

func unitOf(n, keys uint64) string {
	if keys == 0 {
		return idOf(n)
	}
	return keyOf(n, keys)
}

func idOf(n uint64) string { return strconv.FormatUint(n, 10) }

func keyOf(n, keys uint64) string { return string(appendKey(nil, n, keys)) }

func appendKey(dst []byte, n, keys uint64) []byte {
	return strconv.AppendUint(append(dst, "key-"...), n%keys, 10)
}

func (f *feed) unit(n uint64) string { return unitOf(n, f.keys) }

// next takes the next event. False: there is none.
func (f *feed) next() (uint64, bool) {
	for len(f.catchUp) > 0 {
		if n, ok := f.pop(f.catchUp[0]); ok {
			return n, true
		}
		f.catchUp = f.catchUp[1:]
	}
	for f.end == 0 || f.cursor <= f.end {
		n := f.cursor
		f.cursor++
		if len(f.held) > 0 {
			if h, ok := f.held[f.unit(n)]; ok {
				if h.passed == 0 {
					h.passed = n
				}
				continue
			}
		}
		return n, true
	}
	return 0, false
}

// pop takes the first event of a stash.
func (f *feed) pop(h *stash) (uint64, bool) {
	if len(h.returned) > 0 {
		n := h.returned[0]
		h.returned = h.returned[1:]
		return n, true
	}
	if h.passed == 0 || h.passed >= f.cursor {
		return 0, false
	}
	n := h.passed
	if f.keys == 0 {
		h.passed = 0
	} else {
		h.passed += f.keys
	}
	return n, true
}

// hold leaves a unit out. A unit that is catching up is held with what it has left.
func (f *feed) hold(unit string) {
	if f.held[unit] != nil {
		return
	}
	h := &stash{unit: unit}
	if i := slices.IndexFunc(f.catchUp, func(h *stash) bool { return h.unit == unit }); i >= 0 {
		h = f.catchUp[i]
		f.catchUp = slices.Delete(f.catchUp, i, i+1)
	}
	f.held[unit] = h
}

// giveBack takes an event that was returned. It comes again when its unit is released, or at once if that is not held.
func (f *feed) giveBack(n uint64) {
	unit := f.unit(n)
	h := f.held[unit]
	if h == nil {
		if i := slices.IndexFunc(f.catchUp, func(h *stash) bool { return h.unit == unit }); i >= 0 {
			h = f.catchUp[i]
		} else {
			h = &stash{unit: unit}
			f.catchUp = append(f.catchUp, h)
		}
	}
	at, _ := slices.BinarySearch(h.returned, n)
	h.returned = slices.Insert(h.returned, at, n)
}

// release lets a unit be read again.
func (f *feed) release(unit string) {
	if h := f.held[unit]; h != nil {
		delete(f.held, unit)
		f.catchUp = append(f.catchUp, h)
	}
}
