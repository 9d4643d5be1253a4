package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/relevo-io/relevo/sdk"
)

// An event is posted as a CloudEvent in binary mode: the payload is the body, as it is, and what is known of the event
// stands in headers that receivers in every language have a library for. Headers of our own would have told the same to
// nobody.
const (
	headerID       = "Idempotency-Key" // the id once more, where gateways and frameworks look for it
	headerPrefix   = "Relevo-"         // of the event's own headers
	timeLayout     = "2006-01-02T15:04:05.000000Z"
	typeOfUntyped  = "event" // a CloudEvent without a type is none
	codeHeaderName = "header_name_invalid"
)

// request is the event as a request. What can be refused is refused here, before anything is sent.
func (w *writer) request(ctx context.Context, e *sdk.Item) (*http.Request, error) {
	u, err := w.target(e.Destination)
	if err != nil {
		return nil, sdk.Permanent(err).WithCode("path_invalid")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(e.Payload))
	if err != nil {
		return nil, sdk.Permanent(errors.New("no request can be made of the event")).WithCode("request_invalid")
	}
	r.Header = w.header.Clone()
	set := func(name, value string) {
		if value != "" {
			r.Header.Set(name, encode(value))
		}
	}
	set(headerID, e.ID)
	r.Header.Set("ce-specversion", "1.0")
	set("ce-id", e.ID)
	set("ce-source", w.source)
	set("ce-type", typeOfUntyped)
	set("ce-type", e.Type)
	set("ce-subject", string(e.Key))
	set("ce-aggregatetype", e.AggregateType)
	if t, ok := e.Time(); ok {
		set("ce-time", t.Format(timeLayout))
	}
	switch {
	case e.Payload == nil:
		// Not DELETE: the address is that of a receiver of events, not of the thing that is gone.
		r.Header.Set("ce-tombstone", "true")
		r.Header.Del("Content-Type")
	case !visible(e.ContentType):
		return nil, sdk.Permanent(errors.New("the event's content type has a character that no header can carry")).
			WithCode("content_type_invalid")
	case e.ContentType != "":
		r.Header.Set("Content-Type", e.ContentType)
	}
	for i := range e.Headers {
		h := &e.Headers[i]
		if !token(h.Name) {
			return nil, sdk.Permanent(fmt.Errorf("%q is no name that a header of HTTP can have", h.Name)).WithCode(codeHeaderName)
		}
		if h.Value != nil { // HTTP has no null
			r.Header.Add(headerName(h.Name), encode(string(h.Value)))
		}
	}
	return r, nil
}

// target is the address that an event with this destination is posted to.
func (w *writer) target(to string) (*url.URL, error) {
	switch {
	case !strings.HasPrefix(to, "/"):
		return nil, fmt.Errorf("path %.100q does not begin with a slash", to)
	case strings.ContainsAny(to, "?#"):
		return nil, fmt.Errorf("path %.100q has a ? or #: a query belongs to url", to)
	}
	for segment := range strings.SplitSeq(to, "/") {
		// A field of an event that is ".." would choose another path.
		if segment == "." || segment == ".." {
			return nil, fmt.Errorf("path %.100q has a segment %q", to, segment)
		}
	}
	u := *w.base
	u.RawPath = strings.TrimSuffix(u.EscapedPath(), "/") + to
	var err error
	if u.Path, err = url.PathUnescape(u.RawPath); err != nil {
		return nil, fmt.Errorf("path %.100q has a %% that does not begin an escape: write %%25", to)
	}
	return &u, nil
}

// headerName keeps an event from setting what is not its own: Host, Authorization, X-Forwarded-For. The two headers that
// traces go by are the exception, since whoever put them into the outbox wants them found.
func headerName(name string) string {
	switch strings.ToLower(name) {
	case "traceparent", "tracestate":
		return name
	}
	return headerPrefix + name
}

// encode makes a value that a header can carry, by the rule of CloudEvents (HTTP binding, 3.1.3.2): what is not visible
// ASCII, and also space, quote and percent, becomes %XX of its UTF-8. It can be undone, and no value is refused.
func encode(s string) string {
	plain := func(c byte) bool { return c > ' ' && c < 0x7f && c != '"' && c != '%' }
	n := 0
	for i := range len(s) {
		if !plain(s[i]) {
			n++
		}
	}
	if n == 0 {
		return s
	}
	const hex = "0123456789ABCDEF"
	out := make([]byte, 0, len(s)+2*n)
	for i := range len(s) {
		if c := s[i]; plain(c) {
			out = append(out, c)
		} else {
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(out)
}

// visible reports whether a header can carry the value as it is.
func visible(s string) bool {
	return strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) < 0
}

// token reports whether the text is a token of RFC 9110, as names of headers are.
func token(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}) < 0
}
