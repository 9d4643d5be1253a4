package main

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/relevo-io/relevo/sdk"
)

// Headers that this sink sets. The event's own follow; where one of them has the same name as one of ours, ours is the
// first value (what a client's Get returns) and the event's the second, so that nothing is lost.
const (
	headerID            = "id"
	headerType          = "type"
	headerAggregateType = "aggregate_type"
	headerContentType   = "content_type"
	headerTime          = "time"      // RFC 3339 with microseconds, UTC
	headerTombstone     = "tombstone" // "true" on an event without a payload; NATS has no null
)

// Headers of JetStream: instructions to the server.
const (
	reservedPrefix = "nats-"

	headerMsgID          = jetstream.MsgIDHeader
	headerExpectedStream = jetstream.ExpectedStreamHeader
	headerBatchID        = "Nats-Batch-Id"
	headerBatchSeq       = "Nats-Batch-Sequence"
	headerBatchCommit    = "Nats-Batch-Commit"
)

const (
	timeLayout = "2006-01-02T15:04:05.000000Z"

	headerLine = len("NATS/1.0\r\n\r\n")
	headerSep  = len(": \r\n")
	// maxHeaderBlock is the server's limit for all headers of one message, on the wire.
	maxHeaderBlock = 1<<16 - 1
	// batchHeaders is the most that the headers of a batch add to a message.
	batchHeaders = len(headerBatchID) + len(headerBatchSeq) + len(headerBatchCommit) + 3*headerSep + maxBatchID + len("1000") + len("1")
	maxBatchID   = 64
)

// composer makes messages of events. It reuses one message: what it returns is valid until the next call, which is
// enough, since nats.go encodes a message before Publish returns.
type composer struct {
	prefix string // <pipeline>/<sink>/
	stream string // to expect; "": none
	msg    nats.Msg
	values [8][1]string // behind the header's values: one allocation less for each
	used   int
}

func newComposer(instance sdk.Instance, stream string) *composer {
	return &composer{
		prefix: instance.Pipeline + "/" + instance.Name + "/", stream: stream,
		msg: nats.Msg{Header: nats.Header{}},
	}
}

func (c *composer) set(name, value string) {
	if c.used == len(c.values) {
		c.msg.Header[name] = []string{value}
		return
	}
	v := &c.values[c.used]
	c.used++
	v[0] = value
	c.msg.Header[name] = v[:1:1]
}

// message is the event as a message that awaits its confirmation at reply ("": none).
func (c *composer) message(it *sdk.Item, reply string) *nats.Msg {
	clear(c.msg.Header)
	c.used = 0
	c.msg.Subject, c.msg.Reply, c.msg.Data = it.Destination, reply, it.Payload
	// The window in which the server drops repeats is the stream's: without the sink's name in the id, two sinks or two
	// outboxes with numbers for ids would swallow each other's events.
	c.set(headerMsgID, c.prefix+it.ID)
	if c.stream != "" && reply != "" {
		// Of a batch, the last message alone carries it: the server checks every message of a batch when it commits, and
		// one that fails refuses the whole.
		c.set(headerExpectedStream, c.stream)
	}
	c.set(headerID, it.ID)
	if it.Type != "" {
		c.set(headerType, it.Type)
	}
	if it.AggregateType != "" {
		c.set(headerAggregateType, it.AggregateType)
	}
	if it.ContentType != "" {
		c.set(headerContentType, it.ContentType)
	}
	if t, ok := it.Time(); ok {
		c.set(headerTime, t.Format(timeLayout))
	}
	if it.Payload == nil {
		c.set(headerTombstone, "true")
	}
	for i := range it.Headers {
		h := &it.Headers[i]
		if h.Value != nil { // null: no header, as against an empty one
			c.msg.Header[h.Name] = append(c.msg.Header[h.Name], string(h.Value))
		}
	}
	return &c.msg
}

// inBatch makes the message one of a batch.
func (c *composer) inBatch(m *nats.Msg, id string, seq int, commit bool) {
	m.Header[headerBatchID] = []string{id}
	m.Header[headerBatchSeq] = []string{strconv.Itoa(seq)}
	if commit {
		m.Header[headerBatchCommit] = []string{"1"}
	}
}

// size is how many bytes of headers and payload the event's message has, on its own.
func (c *composer) size(it *sdk.Item) (headers, total int) {
	n := headerLine
	add := func(name string, value int) { n += len(name) + value + headerSep }
	add(headerMsgID, len(c.prefix)+len(it.ID))
	if c.stream != "" {
		add(headerExpectedStream, len(c.stream))
	}
	add(headerID, len(it.ID))
	if it.Type != "" {
		add(headerType, len(it.Type))
	}
	if it.AggregateType != "" {
		add(headerAggregateType, len(it.AggregateType))
	}
	if it.ContentType != "" {
		add(headerContentType, len(it.ContentType))
	}
	if it.HasTime {
		add(headerTime, len(timeLayout))
	}
	if it.Payload == nil {
		add(headerTombstone, len("true"))
	}
	for i := range it.Headers {
		if h := &it.Headers[i]; h.Value != nil {
			add(h.Name, len(h.Value))
		}
	}
	return n, n + len(it.Payload)
}

// preflight finds what will be refused for certain, before anything is sent: a selective refusal that comes from the
// server could let later events of the key pass (I4). limit is the server's max_payload.
func (c *composer) preflight(it *sdk.Item, limit int) (size int, err error) {
	if err := validSubject(it.Destination); err != nil {
		return 0, permanent("subject_invalid", "subject %.100q: %w", it.Destination, err)
	}
	for i, name := range [...]string{headerID, headerType, headerAggregateType, headerContentType} {
		value := [...]string{it.ID, it.Type, it.AggregateType, it.ContentType}[i]
		if strings.ContainsAny(value, "\r\n\x00") {
			return 0, permanent("header_invalid", "the event's %s has a line break, which no NATS header can carry", name)
		}
	}
	for i := range it.Headers {
		if err := validHeader(&it.Headers[i]); err != nil {
			return 0, err
		}
	}
	headers, total := c.size(it)
	if headers > maxHeaderBlock {
		return 0, permanent("headers_too_large", "the headers have %d bytes, a NATS message has at most %d", headers, maxHeaderBlock)
	}
	if limit > 0 && total > limit {
		return 0, permanent("message_too_large", "the message has %d bytes, max_payload of the server is %d", total, limit)
	}
	return total, nil
}

func permanent(code, format string, a ...any) *sdk.Error {
	return sdk.Permanent(fmt.Errorf(format, a...)).WithCode(code)
}

// validHeader refuses what nats.go would refuse or change, and what would instruct the server: Nats-Rollup in an event
// would empty the stream.
func validHeader(h *sdk.Header) error {
	for i := range len(h.Name) {
		if b := h.Name[i]; b <= ' ' || b >= 0x7f || strings.IndexByte("\"()/,:;<=>?@[\\]{}", b) >= 0 {
			return permanent("header_invalid", "header name %q has a character that NATS does not allow", h.Name)
		}
	}
	if h.Name == "" {
		return permanent("header_invalid", "a header has no name")
	}
	if len(h.Name) >= len(reservedPrefix) && strings.EqualFold(h.Name[:len(reservedPrefix)], reservedPrefix) {
		return permanent("header_reserved", "header %q is an instruction to the server: Nats-… names are not passed on", h.Name)
	}
	if bytes.ContainsAny(h.Value, "\r\n\x00") {
		return permanent("header_invalid", "the value of header %q has a line break, which no NATS header can carry", h.Name)
	}
	return nil
}

// maxSubject keeps the line that announces a message within the server's max_control_line of 4096 bytes, with the reply
// subject and the sizes: a longer one ends the whole connection.
const maxSubject = 3500

// validSubject checks what a subject to publish to must look like.
func validSubject(s string) error {
	switch {
	case s == "":
		return errors.New("it is empty")
	case len(s) > maxSubject:
		return fmt.Errorf("it has %d bytes, the limit is %d", len(s), maxSubject)
	}
	last := byte('.')
	for i := range len(s) {
		b := s[i]
		switch {
		case b == '.' && last == '.':
			return errors.New("it has an empty token")
		case b <= ' ' || b == 0x7f:
			return errors.New("it has a space or a control character")
		case (b == '*' || b == '>') && last == '.' && (i+1 == len(s) || s[i+1] == '.'):
			return errors.New("it has a wildcard")
		}
		last = b
	}
	if last == '.' {
		return errors.New("it ends with a dot")
	}
	return nil
}

// matches reports whether a stream's subject, which may have wildcards, captures a subject.
func matches(pattern, subject string) bool {
	for {
		p, pRest, pMore := strings.Cut(pattern, ".")
		s, sRest, sMore := strings.Cut(subject, ".")
		switch {
		case p == ">":
			return true
		case p != "*" && p != s:
			return false
		case !pMore || !sMore:
			return pMore == sMore
		}
		pattern, subject = pRest, sRest
	}
}
