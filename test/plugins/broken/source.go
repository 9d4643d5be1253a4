package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// source reads a file of lines "id key", as a table would be polled, and notes in a second file which are done.
type source struct {
	pluginv1.UnimplementedSourceServiceServer
}

type row struct{ id, key string }

const (
	pollEvery = 10 * time.Millisecond
	batchSize = 8
)

// put appends events over keys, in turn.
func put(file, events, keys string) error {
	n, err := strconv.Atoi(events)
	if err != nil {
		return err
	}
	k, err := strconv.Atoi(keys)
	if err != nil {
		return err
	}
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d-%d key-%d\n", time.Now().UnixNano(), i, i%k)
	}
	return appendTo(file, b.String())
}

func appendTo(file, text string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// rows of the file that are not done.
func rows(file string) (rs []row, err error) {
	done := map[string]bool{}
	text, err := os.ReadFile(file + ".done")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for id := range strings.FieldsSeq(string(text)) {
		done[id] = true
	}
	if text, err = os.ReadFile(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if id, key, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !done[id] {
			rs = append(rs, row{id, key})
		}
	}
	return rs, nil
}

func (s *source) Read(stream pluginv1.SourceService_ReadServer) error {
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	open := m.GetOpen()
	var config map[string]string
	if err := json.Unmarshal(open.GetConfig(), &config); err != nil {
		if f := configFault(err.Error() + " in " + string(open.GetConfig())); f != nil {
			return stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Fault{Fault: f}})
		}
		config = map[string]string{"file": os.DevNull}
	}
	r := &reading{stream: stream, file: config["file"], window: open.GetWindow(), open: map[uint64]row{}, ids: map[string]bool{}, held: map[string]bool{}}
	for _, k := range open.GetHeldKeys() {
		r.held[string(k)] = bug != "reads-what-is-held-from-the-start"
	}
	requests, broken := make(chan *pluginv1.ReadRequest), make(chan error, 1)
	go func() { // ends with the stream
		for {
			m, err := stream.Recv()
			if err != nil {
				broken <- err
				return
			}
			select {
			case requests <- m:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	opened := &pluginv1.SourceOpened{HoldsKeys: true, Order: "per key"}
	if err := stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case m := <-requests:
			if m.GetStop() != nil {
				if bug == "hangs-on-stop" {
					<-stream.Context().Done()
				}
				return stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Stopped{Stopped: &pluginv1.Stopped{}}})
			}
			if err := r.obey(m); err != nil {
				return err
			}
		case err := <-broken:
			return err
		case <-tick.C:
			if err := r.poll(); err != nil {
				return err
			}
		}
	}
}

// reading is one stream.
type reading struct {
	stream pluginv1.SourceService_ReadServer
	file   string
	window *pluginv1.Window
	last   uint64
	open   map[uint64]row
	ids    map[string]bool // of open
	held   map[string]bool // keys
}

// rowBytes is more than any row takes.
const rowBytes = 100

// poll sends batches while the window allows.
func (r *reading) poll() error {
	rs, err := rows(r.file)
	if err != nil {
		return err
	}
	b := &pluginv1.Batch{}
	for _, w := range rs {
		if r.held[w.key] && bug != "reads-what-is-held" || r.ids[w.id] && bug != "reads-twice" {
			continue
		}
		if !r.room() {
			break
		}
		r.last++
		if b.GetCount() == 0 {
			b.FirstSeq = r.last
		}
		b.Count++
		e := &pluginv1.Event{Id: w.id, Key: []byte(w.key), Payload: []byte("{}")}
		if bug == "makes-long-ids" {
			e.Id += strings.Repeat("x", 300)
		}
		b.Events = append(b.Events, e)
		r.open[r.last], r.ids[w.id] = w, true
		if bug == "forgets-what-was-not-acked" {
			if err := appendTo(r.file+".done", w.id+"\n"); err != nil {
				return err
			}
		}
		if b.GetCount() == batchSize {
			break
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
	case "gives-positions":
		b.Position = []byte("1")
	}
	return r.stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Batch{Batch: b}})
}

func (r *reading) room() bool {
	n := uint64(len(r.open))
	switch {
	case n == 0 || bug == "overruns-the-window":
		return true
	case bug != "overruns-the-byte-window" && (n+1)*rowBytes > r.window.GetBytes():
		return false
	}
	return n < r.window.GetEvents()
}

func (r *reading) end(ranges []*pluginv1.SeqRange, done bool) error {
	for _, g := range ranges {
		for seq := g.GetFirst(); seq <= g.GetLast(); seq++ {
			w := r.open[seq]
			if done && bug != "never-makes-room" || !done && bug != "keeps-what-is-returned" {
				delete(r.open, seq)
				delete(r.ids, w.id)
			}
			if done && bug != "forgets-acks" {
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

func (r *reading) obey(m *pluginv1.ReadRequest) error {
	switch m := m.GetMessage().(type) {
	case *pluginv1.ReadRequest_Ack:
		return r.end(m.Ack.GetRanges(), true)
	case *pluginv1.ReadRequest_Hold:
		for _, k := range m.Hold.GetKeys() {
			r.held[string(k)] = true
		}
		if err := r.end(m.Hold.GetReturned(), false); err != nil {
			return err
		}
		if len(m.Hold.GetKeys()) > 0 && bug != "never-answers-hold" {
			held := &pluginv1.Held{Keys: m.Hold.GetKeys()}
			return r.stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Held{Held: held}})
		}
	case *pluginv1.ReadRequest_Release:
		for _, k := range m.Release.GetKeys() {
			if bug != "ignores-release" {
				delete(r.held, string(k))
			}
		}
	case *pluginv1.ReadRequest_Window:
		if bug != "ignores-a-new-window" {
			r.window = m.Window
		}
	}
	return nil
}
