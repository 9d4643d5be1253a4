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

// source reads a file of lines "id key": as a table would be polled, with a second file that notes which are done, or as a
// log (log.go). The key "-" is none, a row whose id begins with "bad" can't be made into an event, and a line that begins
// with "#" is something else.
type source struct {
	pluginv1.UnimplementedSourceServiceServer
	log bool
}

type row struct{ id, key string }

func (w row) bad() bool { return strings.HasPrefix(w.id, "bad") }

// unit is what is held: the key, or the id of an event that has none.
func (w row) unit() string {
	if w.key == "-" {
		return w.id
	}
	return w.key
}

// event is nil for a row that can't be made into one.
func (w row) event() *pluginv1.Event {
	if w.bad() {
		return nil
	}
	e := &pluginv1.Event{Id: w.id, Payload: []byte("{}")}
	if w.key != "-" {
		e.Key = []byte(w.key)
	}
	return e
}

const (
	pollEvery = 10 * time.Millisecond
	batchSize = 8
)

// put appends events over keys, in turn: usual ones, bad ones, or lines that are none.
func put(what, file, events, keys string) error {
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
		id := fmt.Sprintf("%d-%d", time.Now().UnixNano(), i)
		switch {
		case what == "put-other":
			fmt.Fprintf(&b, "# %s\n", id)
		case k == 0:
			fmt.Fprintf(&b, "%s -\n", id)
		case what == "put-rejected":
			fmt.Fprintf(&b, "bad-%s key-%d\n", id, i%k)
		default:
			fmt.Fprintf(&b, "%s key-%d\n", id, i%k)
		}
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
		if id, key, ok := strings.Cut(strings.TrimSpace(line), " "); ok && !done[id] && id != "#" {
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
	if err := reachable(config["file"]); err != nil {
		if f := awayFault(err); f != nil {
			return stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Fault{Fault: f}})
		}
	}
	opened := &pluginv1.SourceOpened{HoldsKeys: !s.log, HasPositions: s.log, Order: "per key"}
	if err := stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	r := newTable(stream, config["file"], open)
	if s.log {
		r = newLog(stream, config["file"], open)
	}
	return serveReader(stream, r)
}

// reader is one stream.
type reader interface {
	obey(m *pluginv1.ReadRequest) error
	poll() error
}

// serveReader polls until the host asks for the end.
func serveReader(stream pluginv1.SourceService_ReadServer, r reader) error {
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
			if bug == "stops-at-sigterm" && terminated.Load() {
				continue
			}
			if err := r.poll(); err != nil {
				return err
			}
		}
	}
}
