package main

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relevo-io/relevo/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// received is one request as a receiver has seen it.
type received struct {
	method, uri string
	header      http.Header
	body        []byte
}

// receiver is a real server that keeps what it accepts.
type receiver struct {
	*httptest.Server
	// answer decides over a request, by its number from 0. Nil: 200.
	answer func(n int, w http.ResponseWriter, r received)

	mu  sync.Mutex
	got []received
}

func startReceiver(t *testing.T, answer func(n int, w http.ResponseWriter, r received)) *receiver {
	t.Helper()
	rc := &receiver{answer: answer}
	rc.Server = httptest.NewUnstartedServer(rc)
	rc.Config.ErrorLog = quiet
	rc.Start()
	t.Cleanup(rc.Close)
	return rc
}

func (rc *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the sink was killed while it sent
	}
	req := received{method: r.Method, uri: r.RequestURI, header: r.Header, body: body}
	rc.mu.Lock()
	n := len(rc.got)
	rc.got = append(rc.got, req)
	rc.mu.Unlock()
	if rc.answer != nil {
		rc.answer(n, w, req)
	}
}

func (rc *receiver) requests() []received {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	return append([]received(nil), rc.got...)
}

// newTestWriter is a sink's writer for the address.
func newTestWriter(t *testing.T, url string, change ...func(*Config)) *writer {
	t.Helper()
	c := DefaultConfig()
	c.URL = sdk.Secret(url)
	for _, f := range change {
		f(&c)
	}
	require.NoError(t, c.Validate())
	w, err := open(t.Context(), sdk.SinkOpen[Config]{Config: c, Instance: sdk.Instance{Pipeline: "orders", Name: "hook"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close(context.WithoutCancel(t.Context()))) })
	return w.(*writer)
}

// item makes an event, changed by the function.
func item(change ...func(*sdk.Item)) *sdk.Item {
	it := &sdk.Item{
		Event: sdk.Event{
			ID: "e-1", Key: []byte("order-1"), Type: "OrderPlaced", AggregateType: "order",
			ContentType: "application/json", Payload: []byte(`{"n": 1}`),
		},
		Destination: "/events",
	}
	for _, f := range change {
		f(it)
	}
	return it
}

func requireClass(t *testing.T, err error, class sdk.Class, code string) *sdk.Error {
	t.Helper()
	require.Error(t, err)
	e := sdk.ErrorOf(err)
	require.Equal(t, class, e.Class, "%v", err)
	require.Equal(t, code, e.Code, "%v", err)
	return e
}

// certificate is the server's own, as PEM text.
func pemOf(t *testing.T, s *httptest.Server) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, encodePEM(&b, s.Certificate()))
	return b.String()
}
