package plugin

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	maxLine     = 64 << 10 // a longer line is cut
	maxTailLine = 2 << 10  // what of a line is kept for Exit
	tailLines   = 10

	linesPerSecond = 1000 // what a plugin may log for long
	lineBurst      = 5000
	reportDropped  = 5 * time.Second
)

// lineLog turns the lines that a plugin writes into log records. I10: whatever it writes and however much, the host is
// not blocked, not filled, and not confused.
type lineLog struct {
	out *slog.Logger
	now func() time.Time

	mu       sync.Mutex
	tokens   float64 // a bucket of lines
	filled   time.Time
	dropped  int
	reported time.Time
	tail     []string // of stderr
	panicked string   // the line that began a panic, whose stack would push it out of tail
	closed   bool
}

func newLineLog(out *slog.Logger) *lineLog {
	return &lineLog{out: out, now: time.Now, tokens: lineBurst}
}

// write takes one line without its end; cut is how many bytes of it were thrown away.
func (l *lineLog) write(stream string, text []byte, cut int) {
	text = bytes.TrimRight(text, "\r")
	if len(bytes.TrimSpace(text)) == 0 {
		return
	}
	rec := parseLine(text)
	if stream != "stderr" {
		rec.attrs = append(rec.attrs, slog.String("stream", stream))
	}
	if cut > 0 {
		rec.attrs = append(rec.attrs, slog.Int("cut_bytes", cut))
	}
	now := l.now()

	l.mu.Lock()
	if stream == "stderr" {
		l.remember(rec)
	}
	send := !l.closed && l.allow(now)
	dropped := 0
	if send {
		dropped = l.takeDropped(now, reportDropped)
	}
	l.mu.Unlock()

	if dropped > 0 {
		l.sayDropped(dropped)
	}
	if send {
		l.emit(now, rec)
	}
}

// allow takes a token from the bucket. Called with mu held.
func (l *lineLog) allow(now time.Time) bool {
	if !l.filled.IsZero() {
		l.tokens = min(lineBurst, l.tokens+max(0, now.Sub(l.filled).Seconds())*linesPerSecond)
	}
	l.filled = now
	if l.tokens < 1 {
		l.dropped++
		return false
	}
	l.tokens--
	return true
}

// takeDropped returns the count of dropped lines if it is time to say it. Called with mu held.
func (l *lineLog) takeDropped(now time.Time, every time.Duration) int {
	if l.dropped == 0 || now.Sub(l.reported) < every {
		return 0
	}
	n := l.dropped
	l.dropped, l.reported = 0, now
	return n
}

// remember keeps a line for Exit. Called with mu held.
func (l *lineLog) remember(rec record) {
	line := rec.String()
	if len(line) > maxTailLine {
		line = strings.ToValidUTF8(line[:maxTailLine], "") + "…"
	}
	if rec.panic && l.panicked == "" {
		l.panicked = line
	}
	if len(l.tail) == tailLines {
		l.tail = append(l.tail[:0], l.tail[1:]...)
	}
	l.tail = append(l.tail, line)
}

// last returns the last lines of stderr, oldest first. The beginning of a panic is among them.
func (l *lineLog) last() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := append([]string(nil), l.tail...)
	if l.panicked == "" {
		return lines
	}
	for _, s := range lines {
		if s == l.panicked {
			return lines
		}
	}
	lines[0] = l.panicked // ten younger ones have pushed it out
	return lines
}

// tick says how many lines were dropped, also when no further line comes.
func (l *lineLog) tick(now time.Time) {
	l.mu.Lock()
	n := l.takeDropped(now, reportDropped)
	l.mu.Unlock()
	if n > 0 {
		l.sayDropped(n)
	}
}

// close ends the log: go-plugin may bring a late line after the process has gone.
func (l *lineLog) close(now time.Time) {
	l.mu.Lock()
	n := l.takeDropped(now, 0)
	l.closed = true
	l.mu.Unlock()
	if n > 0 {
		l.sayDropped(n)
	}
}

func (l *lineLog) sayDropped(n int) {
	l.out.Warn("plugin logs too much, lines were dropped", "dropped", n)
}

func (l *lineLog) emit(now time.Time, rec record) {
	ctx := context.Background()
	if !l.out.Enabled(ctx, rec.level) {
		return
	}
	r := slog.NewRecord(now, rec.level, rec.message, 0)
	r.AddAttrs(rec.attrs...)
	_ = l.out.Handler().Handle(ctx, r) // as slog.Logger does: a log that can't be written has nowhere to say so
}

// splitter cuts a stream of bytes into lines.
func (l *lineLog) splitter(stream string) *splitter { return &splitter{log: l, stream: stream} }

// writer is for what go-plugin forwards of a Go plugin's os.Stdout and os.Stderr.
func (l *lineLog) writer(stream string) io.Writer { return l.splitter(stream) }

// splitter is a Writer for one goroutine.
type splitter struct {
	log    *lineLog
	stream string
	offer  func(line string) bool // sees each line first; true: it is no log line
	line   []byte
	cut    int
}

// Write never fails and never blocks for longer than the log's handler does.
func (s *splitter) Write(b []byte) (int, error) {
	n := len(b)
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			s.add(b)
			return n, nil
		}
		s.add(b[:i])
		s.flush()
		b = b[i+1:]
	}
}

func (s *splitter) add(b []byte) {
	room := maxLine - len(s.line)
	if len(b) > room {
		s.cut += len(b) - room
		b = b[:room]
	}
	s.line = append(s.line, b...)
}

// flush ends the line. A line may also end with the stream.
func (s *splitter) flush() {
	if len(s.line) > 0 && (s.offer == nil || !s.offer(string(s.line))) {
		s.log.write(s.stream, s.line, s.cut)
	}
	if cap(s.line) > 4<<10 {
		s.line = nil // one long line does not keep 64 KiB for ever
	}
	s.line, s.cut = s.line[:0], 0
}
