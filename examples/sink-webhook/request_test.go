package main

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

// post sends one event and returns it as the receiver saw it.
func post(t *testing.T, it *sdk.Item, change ...func(*Config)) received {
	t.Helper()
	rc := startReceiver(t, nil)
	w := newTestWriter(t, rc.URL, change...)
	require.NoError(t, w.Write(t.Context(), it))
	require.Len(t, rc.requests(), 1)
	return rc.requests()[0]
}

func TestRequest(t *testing.T) {
	t.Parallel()
	got := post(t, item(func(it *sdk.Item) {
		it.TimeMicro, it.HasTime = 1_700_000_000_123_456, true
		it.Headers = []sdk.Header{
			{Name: "tenant", Value: []byte("ACME")},
			{Name: "tenant", Value: []byte("again")},
			{Name: "null"},
			{Name: "empty", Value: []byte{}},
			{Name: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
			{Name: "Authorization", Value: []byte("Bearer forged")},
			{Name: "Content-Length", Value: []byte("0")},
		}
	}), func(c *Config) {
		c.Headers = map[string]sdk.Secret{"X-Api-Key": "k3y"}
		c.Auth = &Auth{Token: "t0ken"}
	})
	require.Equal(t, http.MethodPost, got.method)
	require.Equal(t, "/events", got.uri)
	require.Equal(t, `{"n": 1}`, string(got.body))
	require.Equal(t, http.Header{
		"Content-Type":          {"application/json"},
		"Content-Length":        {"8"},
		"User-Agent":            {"relevo"},
		"Authorization":         {"Bearer t0ken"},
		"X-Api-Key":             {"k3y"},
		"Idempotency-Key":       {"e-1"},
		"Ce-Specversion":        {"1.0"},
		"Ce-Id":                 {"e-1"},
		"Ce-Source":             {"relevo/orders"},
		"Ce-Type":               {"OrderPlaced"},
		"Ce-Subject":            {"order-1"},
		"Ce-Aggregatetype":      {"order"},
		"Ce-Time":               {"2023-11-14T22:13:20.123456Z"},
		"Relevo-Tenant":         {"ACME", "again"},
		"Relevo-Empty":          {""},
		"Relevo-Authorization":  {"Bearer%20forged"},
		"Relevo-Content-Length": {"0"},
		"Traceparent":           {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}, got.header)
}

func TestNothingButTheID(t *testing.T) {
	t.Parallel()
	got := post(t, &sdk.Item{Event: sdk.Event{ID: "7", Payload: []byte{}}, Destination: "/"})
	require.Equal(t, http.Header{
		"User-Agent": {"relevo"}, "Content-Length": {"0"}, "Idempotency-Key": {"7"},
		"Ce-Specversion": {"1.0"}, "Ce-Id": {"7"}, "Ce-Source": {"relevo/orders"}, "Ce-Type": {"event"},
	}, got.header)
}

func TestTombstone(t *testing.T) {
	t.Parallel()
	got := post(t, item(func(it *sdk.Item) { it.Payload = nil }), func(c *Config) {
		c.Headers = map[string]sdk.Secret{"Content-Type": "application/json"}
	})
	require.Equal(t, http.MethodPost, got.method)
	require.Equal(t, "true", got.header.Get("ce-tombstone"))
	require.Empty(t, got.header.Values("Content-Type"), "there is no content")
	require.Empty(t, got.body)
}

// Whatever stands in an event reaches the receiver, and can be taken apart again; nothing of it becomes a header of its
// own.
func TestValuesAreEncoded(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		"plain", "a b", `"quoted"`, "100%", "παραγγελία-🧾", "\xff\x00\xfe", "x\r\nSet-Cookie: a=b", " both ends ", "\t", "~!#$&'()*+,/:;=?@[]",
	} {
		got := post(t, item(func(it *sdk.Item) {
			it.Key = []byte(value)
			it.Headers = []sdk.Header{{Name: "v", Value: []byte(value)}}
		}))
		for _, name := range []string{"ce-subject", "Relevo-V"} {
			back, err := url.PathUnescape(got.header.Get(name))
			require.NoError(t, err)
			require.Equal(t, value, back)
		}
		require.Empty(t, got.header.Values("Set-Cookie"))
	}
	require.Equal(t, "Euro%20%E2%82%AC%20%F0%9F%98%80", encode("Euro € 😀"), "the example of the specification")
}

func TestRefusedBeforeSending(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code   string
		change func(*sdk.Item)
	}{
		{"header_name_invalid", func(it *sdk.Item) { it.Headers = []sdk.Header{{Name: "a b", Value: []byte("v")}} }},
		{"header_name_invalid", func(it *sdk.Item) { it.Headers = []sdk.Header{{Name: "a\r\nHost", Value: []byte("v")}} }},
		{"header_name_invalid", func(it *sdk.Item) { it.Headers = []sdk.Header{{Name: "größe"}} }},
		{"content_type_invalid", func(it *sdk.Item) { it.ContentType = "text/plain\r\nHost: x" }},
		{"path_invalid", func(it *sdk.Item) { it.Destination = "/orders/.." }},
		{"path_invalid", func(it *sdk.Item) { it.Destination = "orders" }},
	} {
		rc := startReceiver(t, nil)
		err := newTestWriter(t, rc.URL).Write(t.Context(), item(c.change))
		requireClass(t, err, sdk.ClassPermanent, c.code)
		require.Empty(t, rc.requests())
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ base, to, want string }{
		{"", "/", "/"},
		{"/", "/orders", "/orders"},
		{"/hooks", "/orders", "/hooks/orders"},
		{"/hooks/", "/orders/", "/hooks/orders/"},
		{"/hooks?token=s3cret", "/orders", "/hooks/orders?token=s3cret"},
		{"", "/orders/Order Placed", "/orders/Order%20Placed"},
		{"", "/παρ", "/%CF%80%CE%B1%CF%81"},
		{"/a%2Fb", "/c%2Fd", "/a%2Fb/c%2Fd"},
		{"", "/a//b", "/a//b"},
		{"", "/..a/.b/...", "/..a/.b/..."},
	} {
		rc := startReceiver(t, nil)
		w := newTestWriter(t, rc.URL+c.base)
		require.NoError(t, w.Write(t.Context(), item(func(it *sdk.Item) { it.Destination = c.to })))
		require.Equal(t, c.want, rc.requests()[0].uri, "%q behind %q", c.to, c.base)
	}
	for _, to := range []string{"", "orders", "/a?b", "/a#b", "/a/../b", "/.", "/%zz", "//host/../x"} {
		_, err := newTestWriter(t, "http://127.0.0.1/hooks").target(to)
		require.Error(t, err, to)
	}
}

func TestConstantPathIsCheckedAtOpen(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	c.URL = "http://127.0.0.1"
	_, err := open(t.Context(), sdk.SinkOpen[Config]{Config: c, ConstantDestination: "orders"})
	requireClass(t, err, sdk.ClassConfig, "path_invalid")
}

func FuzzEncode(f *testing.F) {
	f.Add("a b")
	f.Add("\r\n\x00\xff%")
	f.Fuzz(func(t *testing.T, s string) {
		e := encode(s)
		back, err := url.PathUnescape(e)
		require.NoError(t, err)
		require.Equal(t, s, back)
		require.True(t, visible(e) && !strings.Contains(e, " "))
	})
}
