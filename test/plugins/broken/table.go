package main

import (
	"strings"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// table is one stream from a table.
type table struct {
	stream pluginv1.SourceService_ReadServer
	file   string
	window *pluginv1.Window
	last   uint64
	open   map[uint64]row
	ids    map[string]bool // of open
	held   map[string]bool // keys, and ids of events without one
}

// rowBytes is more than any row takes.
const rowBytes = 100

func newTable(stream pluginv1.SourceService_ReadServer, file string, open *pluginv1.SourceOpen) reader {
	r := &table{stream: stream, file: file, window: open.GetWindow(), open: map[uint64]row{}, ids: map[string]bool{}, held: map[string]bool{}}
	for _, k := range open.GetHeldKeys() {
		r.held[string(k)] = bug != "reads-what-is-held-from-the-start"
	}
	for _, id := range open.GetHeldIds() {
		r.held[id] = bug != "reads-ids-that-are-held-from-the-start"
	}
	return r
}

// skips says whether a row is left out.
func (r *table) skips(w row) bool {
	switch {
	case w.bad() && bug == "skips-bad-rows":
		return true
	case r.held[w.unit()] && bug != "reads-what-is-held" && (bug != "reads-ids-that-are-held" || w.key != "-"):
		return true
	}
	return r.ids[w.id] && bug != "reads-twice"
}

// poll sends a batch if the window allows.
func (r *table) poll() error {
	rs, err := rows(r.file)
	if err != nil {
		return err
	}
	b := &pluginv1.Batch{FirstSeq: r.last + 1}
	for _, w := range rs {
		if r.skips(w) {
			continue
		}
		if w.bad() && bug == "stops-at-bad-rows" {
			break
		}
		if b.GetCount() == batchSize || !r.room() {
			break
		}
		r.last++
		r.open[r.last], r.ids[w.id] = w, true
		add(b, w)
		if bug == "forgets-what-was-not-acked" || bug == "forgets-bad-rows" && w.bad() {
			if err := appendTo(r.file+".done", w.id+"\n"); err != nil {
				return err
			}
		}
	}
	if b.GetCount() == 0 {
		return nil
	}
	switch bug {
	case "skips-a-number":
		b.FirstSeq++
	case "miscounts":
		b.Count++
	case "miscounts-bad-rows":
		b.Count -= uint32(len(b.GetRejected()))
	case "gives-positions":
		b.Position = []byte("1")
	}
	return r.stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Batch{Batch: b}})
}

// add puts a row into a batch.
func add(b *pluginv1.Batch, w row) {
	if e := w.event(); e != nil {
		if bug == "makes-long-ids" {
			e.Id += strings.Repeat("x", 300)
		}
		b.Events = append(b.Events, e)
	} else {
		bad := &pluginv1.Rejected{Offset: b.GetCount(), Id: w.id, Key: []byte(w.key), Code: "row_bad", Message: "the id begins with bad"}
		switch bug {
		case "misplaces-bad-rows":
			bad.Offset += 100
		case "rejects-without-code":
			bad.Code = ""
		case "rejects-without-id":
			bad.Id = ""
		}
		b.Rejected = append(b.Rejected, bad)
	}
	b.Count++
}

func (r *table) room() bool {
	n := uint64(len(r.open))
	switch {
	case n == 0 || bug == "overruns-the-window":
		return true
	case bug != "overruns-the-byte-window" && (n+1)*rowBytes > r.window.GetBytes():
		return false
	}
	return n < r.window.GetEvents()
}

func (r *table) end(ranges []*pluginv1.SeqRange, done bool) error {
	for _, g := range ranges {
		for seq := g.GetFirst(); seq <= g.GetLast(); seq++ {
			w := r.open[seq]
			if done && bug != "never-makes-room" || !done && bug != "keeps-what-is-returned" {
				delete(r.open, seq)
				delete(r.ids, w.id)
			}
			if done && bug != "forgets-acks" && (bug != "rejects-for-ever" || !w.bad()) {
				if err := appendTo(r.file+".done", w.id+"\n"); err != nil {
					return err
				}
			}
			if bug == "forgets-acks" {
				r.ids[w.id] = true
			}
		}
	}
	return nil
}

func (r *table) obey(m *pluginv1.ReadRequest) error {
	switch m := m.GetMessage().(type) {
	case *pluginv1.ReadRequest_Ack:
		return r.end(m.Ack.GetRanges(), true)
	case *pluginv1.ReadRequest_Hold:
		for _, k := range m.Hold.GetKeys() {
			r.held[string(k)] = true
		}
		for _, id := range m.Hold.GetIds() {
			r.held[id] = true
		}
		if err := r.end(m.Hold.GetReturned(), false); err != nil {
			return err
		}
		if len(m.Hold.GetKeys())+len(m.Hold.GetIds()) > 0 && bug != "never-answers-hold" {
			held := &pluginv1.Held{Keys: m.Hold.GetKeys(), Ids: m.Hold.GetIds()}
			if bug == "answers-without-ids" {
				held.Ids = nil
			}
			return r.stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Held{Held: held}})
		}
	case *pluginv1.ReadRequest_Release:
		for _, k := range m.Release.GetKeys() {
			if bug != "ignores-release" {
				delete(r.held, string(k))
			}
		}
		for _, id := range m.Release.GetIds() {
			if bug != "ignores-release-of-ids" {
				delete(r.held, id)
			}
		}
	case *pluginv1.ReadRequest_Window:
		if bug != "ignores-a-new-window" {
			r.window = m.Window
		}
	}
	return nil
}
