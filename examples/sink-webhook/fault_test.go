package main

import (
	"context"
	"errors"
	"io"
	"log"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/netproxy"
	"github.com/relevo-io/relevo/sdk"
)

var quiet = log.New(io.Discard, "", 0) // of servers that are cut on purpose

// A receiver that dies in the middle of its answer has said nothing yet, also when it began with 200.
func TestAnswerCutInTheMiddle(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, func(n int, w http.ResponseWriter, _ received) {
		if n > 0 {
			return
		}
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half of it")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	w := newTestWriter(t, rc.URL)
	requireClass(t, w.Write(t.Context(), item()), sdk.ClassTransient, "answer_cut")
	require.NoError(t, w.Write(t.Context(), item()), "and again")
}

func TestNoAnswer(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, func(int, http.ResponseWriter, received) { panic(http.ErrAbortHandler) })
	requireClass(t, newTestWriter(t, rc.URL).Write(t.Context(), item()), sdk.ClassTransient, "unreachable")
}

func TestReceiverHangs(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	rc := startReceiver(t, func(int, http.ResponseWriter, received) { <-release })
	w := newTestWriter(t, rc.URL, func(c *Config) { c.Timeout = sdk.Duration(50 * time.Millisecond) })
	e := requireClass(t, w.Write(t.Context(), item()), sdk.ClassTransient, "timeout")
	require.Equal(t, "no answer within 50ms", e.Error())
	close(release)

	// A host that goes, or a drain that is over, does not wait for the receiver.
	stuck := startReceiver(t, func(int, http.ResponseWriter, received) { <-t.Context().Done() })
	ctx, cancel := context.WithCancelCause(t.Context())
	begun := make(chan struct{})
	stuck.answer = func(int, http.ResponseWriter, received) { close(begun); <-ctx.Done() }
	go func() { <-begun; cancel(errors.New("the drain is over")) }()
	require.Error(t, newTestWriter(t, stuck.URL).Write(ctx, item()))
}

// The connection is cut while the answer is on its way: an unknown outcome, and the same key at the second time.
func TestConnectionCut(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, nil)
	p := netproxy.Start(t, rc.Listener.Addr().String())
	w := newTestWriter(t, "http://"+p.Addr())
	p.CutAfter(netproxy.Down, 5)
	requireClass(t, w.Write(t.Context(), item()), sdk.ClassTransient, "unreachable")
	require.NoError(t, w.Write(t.Context(), item()))
	got := rc.requests()
	require.Len(t, got, 2)
	require.Equal(t, got[0].header.Get("Idempotency-Key"), got[1].header.Get("Idempotency-Key"))
}

// Connections are kept: also with answers that nobody wants, and those of failures.
func TestConnectionsAreUsedAgain(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, func(n int, w http.ResponseWriter, _ received) {
		if n%2 == 1 {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = w.Write(make([]byte, 10_000))
	})
	p := netproxy.Start(t, rc.Listener.Addr().String())
	w := newTestWriter(t, "http://"+p.Addr())
	for range 20 {
		_ = w.Write(t.Context(), item())
	}
	require.Equal(t, 1, p.Accepted())
}

func TestConcurrencyIsKept(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	arrived := make(chan struct{}, 10)
	rc := startReceiver(t, func(int, http.ResponseWriter, received) { arrived <- struct{}{}; <-release })
	w := newTestWriter(t, rc.URL, func(c *Config) { c.Concurrency = 3 })
	done := make(chan error, 10)
	for range 10 {
		go func() { done <- w.Write(t.Context(), item()) }()
	}
	for range 3 {
		<-arrived
	}
	select {
	case <-arrived:
		require.Fail(t, "a fourth request")
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	for range 10 {
		require.NoError(t, <-done)
	}
}

func TestThrottle(t *testing.T) {
	t.Parallel()
	rc := startReceiver(t, func(n int, w http.ResponseWriter, _ received) {
		if n == 0 {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	})
	w := newTestWriter(t, rc.URL)
	requireClass(t, w.Write(t.Context(), item()), sdk.ClassTransient, "throttled")
	e := requireClass(t, w.Write(t.Context(), item()), sdk.ClassTransient, "throttled")
	require.Contains(t, e.Error(), "the receiver has asked for no requests until 2")
	require.Len(t, rc.requests(), 1, "the receiver is left in peace")
}

func TestThrottleWaitsForAShortWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var th throttle
		begin := time.Now()
		require.NoError(t, th.wait(t.Context()))
		require.Zero(t, time.Since(begin))

		th.hold(begin.Add(2 * time.Second))
		th.hold(begin.Add(time.Second)) // the later one counts
		require.NoError(t, th.wait(t.Context()))
		require.Equal(t, 2*time.Second, time.Since(begin))

		th.hold(time.Now().Add(2 * time.Second))
		go func() {
			<-time.After(time.Second)
			th.hold(time.Now().Add(patience + 2*time.Second)) // asked for more while somebody waits
		}()
		requireClass(t, th.wait(t.Context()), sdk.ClassTransient, "throttled")

		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errors.New("the drain is over"))
		defer cancel()
		<-time.After(3 * time.Second)
		require.EqualError(t, th.wait(ctx), "the drain is over")
	})
}

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                              {},
		"soon":                          {},
		"-1":                            {},
		"1.5":                           {},
		"99999999999999999999":          {},
		"0":                             now,
		"120":                           now.Add(2 * time.Minute),
		"2147483647":                    now.Add(maxRetryAfter),
		"Thu, 01 Jan 2026 00:00:30 GMT": now.Add(30 * time.Second),
		"Thu, 01 Jan 2099 00:00:30 GMT": now.Add(maxRetryAfter),
	} {
		require.Equal(t, want, retryAfter(http.Header{"Retry-After": {text}}, now), text)
	}
}
