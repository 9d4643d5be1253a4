package main

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// logReader is one stream from a log. A position is how many lines of the file are behind it.
type logReader struct {
	stream pluginv1.SourceService_ReadServer
	file   string
	window *pluginv1.Window
	next   int    // line
	last   uint64 // number
	acked  uint64 // the window is a distance: everything behind it counts
}

func newLog(stream pluginv1.SourceService_ReadServer, file string, open *pluginv1.SourceOpen) reader {
	r := &logReader{stream: stream, file: file, window: open.GetWindow()}
	if bug != "starts-over" {
		r.next, _ = strconv.Atoi(string(open.GetPosition())) // an empty one is the beginning
	}
	return r
}

// poll sends a batch if there is one and the window allows, or a Progress if the log has moved on without events.
func (r *logReader) poll() error {
	text, err := os.ReadFile(r.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	lines := strings.Split(string(text[:bytes.LastIndexByte(text, '\n')+1]), "\n")
	lines = lines[:len(lines)-1] // behind the last line break
	b := &pluginv1.Batch{FirstSeq: r.last + 1}
	at := r.next
	for at < len(lines) && b.GetCount() < batchSize {
		id, key, _ := strings.Cut(lines[at], " ")
		if id != "#" {
			if !r.room() {
				break
			}
			r.last++
			add(b, row{id, key})
		}
		at++
	}
	moved := at > r.next
	r.next = at
	switch {
	case b.GetCount() > 0:
		b.Position = position(at)
		return r.stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Batch{Batch: b}})
	case moved && bug != "makes-no-progress":
		p := &pluginv1.Progress{Position: position(at)}
		switch bug {
		case "runs-ahead":
			p.Position = position(at + 3)
		case "falls-behind":
			p.Position = position(at - 3)
		case "progresses-nowhere":
			p.Position = nil
		}
		return r.stream.Send(&pluginv1.ReadResponse{Message: &pluginv1.ReadResponse_Progress{Progress: p}})
	}
	return nil
}

func position(line int) []byte { return strconv.AppendInt(nil, int64(line), 10) }

func (r *logReader) room() bool {
	n := r.last - r.acked
	return n == 0 || n < r.window.GetEvents() && (n+1)*rowBytes <= r.window.GetBytes()
}

func (r *logReader) obey(m *pluginv1.ReadRequest) error {
	switch m := m.GetMessage().(type) {
	case *pluginv1.ReadRequest_Ack:
		r.acked = m.Ack.GetThroughSeq()
	case *pluginv1.ReadRequest_Window:
		r.window = m.Window
	}
	return nil
}
