package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
	"github.com/relevo-io/relevo/sdk"
)

func TestPreflight(t *testing.T) {
	t.Parallel()
	header := func(name, value string) func(*sdk.Item) {
		return func(it *sdk.Item) { it.Headers = []sdk.Header{{Name: name, Value: []byte(value)}} }
	}
	to := func(s string) func(*sdk.Item) { return func(it *sdk.Item) { it.Destination = s } }
	for name, c := range map[string]struct {
		change func(*sdk.Item)
		code   string
	}{
		"plain":               {func(*sdk.Item) {}, ""},
		"dots":                {to("com.acme.Order"), ""},
		"utf-8":               {to("bestellung.größe"), ""},
		"star inside a token": {to("a.b*c"), ""},
		"empty subject":       {to(""), "subject_invalid"},
		"empty token":         {to("a..b"), "subject_invalid"},
		"leading dot":         {to(".a"), "subject_invalid"},
		"trailing dot":        {to("a."), "subject_invalid"},
		"star":                {to("a.*"), "subject_invalid"},
		"greater":             {to("a.>"), "subject_invalid"},
		"space":               {to("a b"), "subject_invalid"},
		"longest subject":     {to(strings.Repeat("s", 3500)), ""},
		"too long a subject":  {to(strings.Repeat("s", 3501)), "subject_invalid"},
		"newline":             {to("a\r\nPUB x"), "subject_invalid"},
		"header":              {header("trace-id", "a b"), ""},
		"empty value":         {header("x", ""), ""},
		"utf-8 value":         {header("x", "größe"), ""},
		"colon in name":       {header("a:b", "x"), "header_invalid"},
		"space in name":       {header("a b", "x"), "header_invalid"},
		"umlaut in name":      {header("ä", "x"), "header_invalid"},
		"line break":          {header("x", "a\r\nNats-Rollup: all"), "header_invalid"},
		"reserved":            {header("Nats-Rollup", "all"), "header_reserved"},
		"reserved, any case":  {header("nats-msg-id", "1"), "header_reserved"},
		"id with line break":  {func(it *sdk.Item) { it.ID = "a\nb" }, "header_invalid"},
		"64 KiB of headers":   {header("x", strings.Repeat("y", 65_500)), "headers_too_large"},
		"too large":           {func(it *sdk.Item) { it.Payload = make([]byte, 1<<20) }, "message_too_large"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			it := event("k", 1, "orders.created")
			c.change(&it)
			size, err := newComposer(sdk.Instance{Pipeline: "p", Name: "s"}, "S").preflight(&it, 1<<20)
			if c.code == "" {
				require.NoError(t, err)
				require.Positive(t, size)
				return
			}
			requireClass(t, err, sdk.ClassPermanent, c.code)
		})
	}
}

// What preflight lets pass, the server stores unchanged; nothing in between refuses it.
func TestWhatPreflightPassesIsStored(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "")
		const names = "!#$%&'*+-.^_`|~azAZ09"
		var all []sdk.Item
		for i, value := range []string{"", "a", "größe", "a: b", "\ttab inside\tx", strings.Repeat("v", 60_000), "\x01\x7f\xff"} {
			it := event("k", i, "orders.created")
			it.Headers = []sdk.Header{{Name: names, Value: []byte(value)}}
			all = append(all, it)
		}
		all = append(all, event("k", 7, "orders."+strings.Repeat("s", maxSubject-len("orders."))))
		all[7].Headers = all[0].Headers
		h.add(all...)
		h.waitAcked(len(all))
		require.NoError(t, h.stop())
		require.Empty(t, h.failed())
		require.Zero(t, h.metric("reconnects_total"))
		for i, m := range natstest.Messages(t, js, "ORDERS") {
			require.Equal(t, strings.TrimSpace(string(all[i].Headers[0].Value)), m.Header.Get(names))
		}
	})
}

func TestPermanentFailureIsOfItsEventAlone(t *testing.T) {
	t.Parallel()
	modes(t, func(t *testing.T, atomic bool) {
		s := natstest.Start(t)
		js := s.JetStream()
		orders(t, js, batches(atomic))
		h := openSink(t, config(s.URL()), "orders.created", func(h *fakeHost) { h.mend = func(*sdk.Item, *sdk.Error) bool { return false } })
		var all, good []sdk.Item
		for i := range 60 {
			it := event("", i, "orders.created")
			it.Key = nil // asks for no order: fails alone
			if i%10 == 3 {
				it.Headers = []sdk.Header{{Name: "Nats-Rollup", Value: []byte("all")}}
			} else {
				good = append(good, it)
			}
			all = append(all, it)
		}
		h.add(all...)
		h.wait("the end of all", func() bool { return len(h.acked)+len(h.failures) == len(all) })
		require.NoError(t, h.stop())
		require.Len(t, h.failed(), 6)
		require.Zero(t, h.returned)
		require.Len(t, natstest.Messages(t, js, "ORDERS"), len(good))
	})
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.b", "a", false},
		{"a", "a.b", false},
		{"a.*", "a.b", true},
		{"a.*", "a.b.c", false},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{">", "a.b", true},
		{"*.b", "a.b", true},
		{"*", "a.b", false},
	} {
		require.Equal(t, c.want, matches(c.pattern, c.subject), "%s %s", c.pattern, c.subject)
	}
}
