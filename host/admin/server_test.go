package admin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/relevo-io/relevo/host/pipeline"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stubSource answers what it is set to.
type stubSource struct {
	pipelines         []pipeline.Status
	started, draining bool
}

func (s *stubSource) Pipelines() []pipeline.Status { return s.pipelines }
func (s *stubSource) Started() bool                { return s.started }
func (s *stubSource) Draining() bool               { return s.draining }

func settings(src Source, token string) Settings {
	return Settings{
		Addr:   "127.0.0.1:0",
		Token:  token,
		Source: src,
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "relevo_up 1\n")
		}),
		Logger: slog.New(slog.DiscardHandler),
	}
}

// run serves on a free port until the test ends; stop ends it sooner and returns Run's error.
func run(t *testing.T, s Settings) (url string, stop func() error) {
	t.Helper()
	server, err := Listen(t.Context(), s)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	var ended error
	stopped := false
	stop = func() error {
		if !stopped {
			stopped = true
			cancel()
			ended = <-done
		}
		return ended
	}
	t.Cleanup(func() { require.NoError(t, stop()) })
	return "http://" + server.Addr().String(), stop
}

func get(t *testing.T, url string) (status int, body string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	res, err := client.Get(url)
	require.NoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(b)
}

func TestServes(t *testing.T) {
	t.Parallel()
	src := &stubSource{started: true, pipelines: []pipeline.Status{{Name: "orders", State: pipeline.Running}}}
	url, stop := run(t, settings(src, ""))
	for path, want := range map[string]string{
		"/livez":                   "ok\n",
		"/readyz":                  "ready\norders RUNNING\n",
		"/metrics":                 "relevo_up 1\n",
		"/api/v1/pipelines":        `[{"name":"orders","state":"RUNNING"`,
		"/api/v1/pipelines/orders": `{"name":"orders","state":"RUNNING"`,
		"/":                        "<title>Relevo</title>",
		"/page.js":                 "api/v1/pipelines",
		"/page.css":                "prefers-color-scheme: dark",
	} {
		status, body := get(t, url+path)
		require.Equal(t, 200, status, path)
		require.Contains(t, body, want, path)
	}
	status, _ := get(t, url+"/etc/passwd")
	require.Equal(t, 404, status)

	require.NoError(t, stop())
	_, err := net.Dial("tcp", url[len("http://"):])
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	s := settings(&stubSource{}, "")
	first, err := Listen(t.Context(), s)
	require.NoError(t, err)
	s.Addr = first.Addr().String()
	_, err = Listen(t.Context(), s)
	require.ErrorIs(t, err, ErrListen)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	require.EqualError(t, err, fmt.Sprintf("listen on %q: address already in use: another program, perhaps another relevo, has it; "+
		"set listen to another address", s.Addr))

	require.NoError(t, first.Close())
	again, err := Listen(t.Context(), s)
	require.NoError(t, err, "Close gives it back")
	require.NoError(t, again.Close())

	s.Addr = "7070"
	_, err = Listen(t.Context(), s)
	require.ErrorIs(t, err, ErrListen)
	require.NotErrorIs(t, err, syscall.EADDRINUSE)
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		started, draining bool
		status            int
		want              string
	}{
		{false, false, 503, "starting\n"},
		{true, false, 200, "ready\n"},
		{true, true, 503, "draining\n"},
		{false, true, 503, "draining\n"},
	} {
		src := &stubSource{started: c.started, draining: c.draining}
		url, _ := run(t, settings(src, ""))
		status, body := get(t, url+"/readyz")
		require.Equal(t, c.status, status)
		require.Equal(t, c.want, body)
		status, _ = get(t, url+"/livez")
		require.Equal(t, 200, status)
	}
}

// A request under way when the host ends still gets its answer.
func TestShutdownWaitsForAnswers(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	s := settings(&stubSource{}, "")
	s.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(entered)
		<-leave
		_, _ = io.WriteString(w, "late\n")
	})
	url, stop := run(t, s)
	conn, err := net.Dial("tcp", url[len("http://"):])
	require.NoError(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", url[len("http://"):])
		if err == nil {
			c.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	}, 10*time.Second, time.Millisecond, "no longer accepts")
	close(leave)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	require.Equal(t, "late\n", string(body))
	require.NoError(t, <-stopped)
}

// A handler that panics, as one for a number that JSON lacks would, ends its own request.
func TestSurvivesAPanic(t *testing.T) {
	t.Parallel()
	s := settings(&stubSource{}, "")
	s.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") })
	url, _ := run(t, s)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	_, err := client.Get(url + "/metrics")
	require.ErrorIs(t, err, io.EOF)
	status, _ := get(t, url+"/livez")
	require.Equal(t, 200, status)
}

func TestNotFiniteNumbersAreLeftOut(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	metrics := map[string]float64{"a": 1, "b": nan, "c": math.Inf(-1)}
	s := pipeline.Status{
		Name:   "orders",
		Source: pipeline.SourceStatus{ReadRate: nan, OldestUnpublishedSecond: &nan, Metrics: metrics},
		Sinks:  []pipeline.SinkStatus{{Name: "kafka", SettleRate: math.Inf(1), Metrics: metrics}},
	}
	url, _ := run(t, settings(&stubSource{pipelines: []pipeline.Status{s}}, ""))
	status, body := get(t, url+"/api/v1/pipelines/orders")
	require.Equal(t, 200, status)
	require.Contains(t, body, `"held":[]`)
	require.Contains(t, body, `"read_rate":0`)
	require.Contains(t, body, `"settle_rate":0`)
	require.Contains(t, body, `"metrics":{"a":1}`)
	require.NotContains(t, body, `oldest_unpublished_seconds`)
	require.Len(t, metrics, 3, "the source's own map is untouched")
}
