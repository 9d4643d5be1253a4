package plugin

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func stacks() []byte {
	b := make([]byte, 8<<20)
	return b[:runtime.Stack(b, true)]
}

func requireCode(t *testing.T, err error, code string) {
	t.Helper()
	e, ok := errors.AsType[*LaunchError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, code, e.Code, "%v", err)
	require.NotEmpty(t, e.Hint, "%v", err)
	require.NotEmpty(t, e.Path, "%v", err)
}

func TestLaunchErrors(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode, path, code string
		says             []string
	}{
		{mode: "crash", code: CodeExited, says: []string{"exit status 3", "\n  | loading\n  | ERROR: cannot find libfoo.so"}},
		{mode: "panic", code: CodeExited, says: []string{"exit status 2", "panic: out of cheese"}},
		{mode: "wrong-cookie", code: CodeExited, says: []string{"exit status 1", "This binary is a plugin of something else."}},
		{mode: "gone", code: CodeExited, says: []string{"right after the handshake (exit status 5)"}},
		{mode: "version", code: CodeProtocolVersion, says: []string{"speaks version 2", "speaks version 1"}},
		{mode: "core-version", code: CodeProtocolVersion, says: []string{"core version 2"}},
		{mode: "netrpc", code: CodeNotGRPC, says: []string{"netrpc"}},
		{mode: "tcp", code: CodeSocket, says: []string{"127.0.0.1:1"}},
		{mode: "elsewhere", code: CodeSocket, says: []string{"/tmp/relevo-elsewhere", "PLUGIN_UNIX_SOCKET_DIR"}},
		{mode: "too-long", code: CodeSocket, says: []string{"bytes"}},
		{mode: "nobody", code: CodeUnhealthy, says: []string{"no such file or directory"}},
		{mode: "not-serving", code: CodeUnhealthy, says: []string{"NOT_SERVING"}},
		{mode: "no-health", code: CodeUnhealthy, says: []string{"unknown method /grpc.health.v1.Health/Check"}},
		{mode: "lifeline-first", path: "nostdin.sh", code: CodeExited, says: []string{"right after the handshake (exit status 0)", "wrapper"}},
		{path: "noshebang.sh", code: CodeWrongFormat, says: []string{"exec format error", "#!/bin/sh"}},
		{path: "nointerpreter.sh", code: CodeMissingInterpreter, says: []string{"/nonexistent/interpreter"}},
		{path: "notexecutable.sh", code: CodeNotExecutable, says: []string{"chmod +x"}},
		{path: "absent", code: CodeNotFound, says: []string{"no such file"}},
		{path: ".", code: CodeNotExecutable, says: []string{"directory"}},
	} {
		t.Run(c.mode+c.path, func(t *testing.T) {
			t.Parallel()
			s, _ := hostile(t, c.mode)
			if c.path != "" {
				s.Path = script(t, c.path)
			}
			start := time.Now()
			p, err := Launch(t.Context(), s)
			require.Nil(t, p)
			requireCode(t, err, c.code)
			require.ErrorContains(t, err, s.Path)
			for _, text := range c.says {
				require.ErrorContains(t, err, text)
			}
			require.Less(t, time.Since(start), soon, "it does not wait for a time-out")
			left, err := os.ReadDir(s.RuntimeDir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestLaunchTimeouts(t *testing.T) {
	t.Parallel()
	for mode, code := range map[string]string{"silent": CodeHandshakeTimeout, "mute": CodeUnhealthy} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, _ := hostile(t, mode)
			s.StartTimeout = time.Second // long enough for the handshake of mute
			_, err := Launch(t.Context(), s)
			requireCode(t, err, code)
			require.ErrorContains(t, err, "within 1s")
		})
	}
}

func TestLaunchCancelled(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"silent", "mute"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			s, l := hostile(t, mode)
			cause := errors.New("pipeline removed")
			ctx, cancel := context.WithCancelCause(t.Context())
			failed := make(chan error, 1)
			go func() {
				_, err := Launch(ctx, s)
				failed <- err
			}()
			if mode == "silent" {
				l.await(t, "thinking")
			} else {
				eventually(t, func() bool { // the handshake is made, or about to be
					dirs, err := os.ReadDir(s.RuntimeDir)
					require.NoError(t, err)
					for _, d := range dirs {
						if _, err := os.Stat(s.RuntimeDir + "/" + d.Name() + "/s"); err == nil {
							return true
						}
					}
					return false
				}, "the socket")
			}
			cancel(cause)
			select {
			case err := <-failed:
				require.ErrorIs(t, err, cause)
			case <-time.After(soon):
				require.FailNow(t, "Launch goes on")
			}
			left, err := os.ReadDir(s.RuntimeDir)
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s, _ := hostile(t, "good")
	_, err := Launch(ctx, s)
	require.ErrorIs(t, err, context.Canceled)
}

func TestPeerOutsideTheGroupIsRefused(t *testing.T) {
	t.Parallel()
	s, l := hostile(t, "stranger")
	_, err := Launch(t.Context(), s)
	escaped := l.pidIn(t, "escaped")
	t.Cleanup(func() { _ = syscall.Kill(escaped, syscall.SIGKILL) })
	requireCode(t, err, CodePeer)
	require.ErrorContains(t, err, "not to the plugin's group")
}

func TestRuntimeDirTooLong(t *testing.T) {
	t.Parallel()
	s, _ := hostile(t, "good")
	s.RuntimeDir = "/" + strings.Repeat("x", 90)
	_, err := Launch(t.Context(), s)
	require.ErrorContains(t, err, "is too long")
	require.ErrorContains(t, err, "117 bytes")
}
