package netproxy

import (
	"bytes"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that answers what it gets, each connection until its client ends it.
func echo(t *testing.T) string {
	t.Helper()
	l, err := Listen()
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return l.Addr().String()
}

func dial(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return c.(*net.TCPConn)
}

func say(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

func hear(t *testing.T, c net.Conn, text string) {
	t.Helper()
	got := make([]byte, len(text))
	_, err := io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

// silent asserts that nothing comes for a while.
func silent(t *testing.T, c net.Conn) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	n, err := c.Read(make([]byte, 1))
	require.Zero(t, n)
	var timeout net.Error
	require.ErrorAs(t, err, &timeout)
	require.True(t, timeout.Timeout(), "got %v", err)
	require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
}

func TestPassesBytesAndEnds(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	c := dial(t, p.Addr())
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // a megabyte: more than any buffer
	go func() {
		_, _ = c.Write(sent)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(c) // the end came through, both ways
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
	require.Equal(t, 1, p.Accepted())
	require.Eventually(t, func() bool { return p.Open() == 0 }, 5*time.Second, time.Millisecond)
}

func TestLatency(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	c := dial(t, p.Addr())
	say(t, c, "warm")
	hear(t, c, "warm")
	p.SetLatency(50 * time.Millisecond)
	start := time.Now()
	for range 10 { // all under way at once: late by one round trip, not by ten
		say(t, c, "ping")
	}
	for range 10 {
		hear(t, c, "ping")
	}
	took := time.Since(start)
	require.GreaterOrEqual(t, took, 100*time.Millisecond)
	require.Less(t, took, 500*time.Millisecond)
}

func TestStall(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]Direction{"up": Up, "down": Down, "both": Both} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Start(t, echo(t))
			before := dial(t, p.Addr())
			say(t, before, "a")
			hear(t, before, "a")
			p.Stall(d)
			during := dial(t, p.Addr())
			for _, c := range []net.Conn{before, during} {
				say(t, c, "b")
				silent(t, c)
			}
			p.Resume()
			for _, c := range []net.Conn{before, during} {
				hear(t, c, "b")
			}
		})
	}
}

func TestCut(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	c := dial(t, p.Addr())
	say(t, c, "a")
	hear(t, c, "a")
	p.Cut()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	again := dial(t, p.Addr())
	say(t, again, "b")
	hear(t, again, "b")
}

func TestCutAfter(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	c := dial(t, p.Addr())
	p.CutAfter(Down, 7)
	say(t, c, "0123")
	hear(t, c, "0123")
	say(t, c, "456789")
	got, err := io.ReadAll(c)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, "456", string(got))

	again := dial(t, p.Addr()) // once only
	say(t, again, "0123456789")
	hear(t, again, "0123456789")
}

func TestHalfClose(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	c := dial(t, p.Addr())
	say(t, c, "a")
	hear(t, c, "a")
	p.Stall(Down)
	say(t, c, "b")
	p.HalfClose(Up) // the server sees the end, answers what it got and ends too
	p.Resume()
	got, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Contains(t, []string{"b", ""}, string(got)) // "b" may have come after the end
}

func TestRefuse(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	c := dial(t, p.Addr())
	say(t, c, "a")
	hear(t, c, "a")
	p.Refuse()
	p.Refuse()
	_, err := net.Dial("tcp", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	say(t, c, "b") // those there are go on
	hear(t, c, "b")
	require.NoError(t, p.Accept())
	require.NoError(t, p.Accept())
	say(t, dial(t, p.Addr()), "c")
}

func TestTarget(t *testing.T) {
	t.Parallel()
	gone, err := Port()
	require.NoError(t, err)
	p := Start(t, (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: gone}).String())
	client, err := net.Dial("tcp", p.Addr())
	if err == nil {
		_, err = client.Read(make([]byte, 1))
		client.Close()
	}
	require.ErrorIs(t, err, syscall.ECONNRESET, "a dead target must not look like an orderly end")

	p.SetTarget(echo(t))
	c := dial(t, p.Addr())
	say(t, c, "a")
	hear(t, c, "a")
}

func TestCloseWhileStalled(t *testing.T) {
	t.Parallel()
	p := Start(t, echo(t))
	p.Stall(Both)
	c := dial(t, p.Addr())
	say(t, c, "a")
	p.Close()
	_, err := c.Read(make([]byte, 1))
	require.Error(t, err)
	_, err = net.Dial("tcp", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	require.NoError(t, p.Accept(), "no effect after Close")
	_, err = net.Dial("tcp", p.Addr())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}
