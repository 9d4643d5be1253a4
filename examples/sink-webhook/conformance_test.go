package main

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/conformance"
	"github.com/relevo-io/relevo/sdk/sdktest"
)

// The executable, as a host drives it, and conformance.yaml as its reader would use it: with the receiver beside it, as a
// process. Only the port is another, and nothing is built again for each command.
func TestConformance(t *testing.T) {
	t.Parallel()
	program, addr := startReceiverProcess(t)
	spec, err := conformance.Load("conformance.yaml")
	require.NoError(t, err)
	const port = "http://127.0.0.1:8080"
	require.Equal(t, port, spec.Config["url"])
	spec.Config["url"] = "http://" + addr
	for _, argv := range []*[]string{&spec.Break, &spec.Mend, &spec.Observe} {
		rest, ok := strings.CutPrefix(strings.Join(*argv, " "), "go run ./receiver ")
		require.True(t, ok)
		*argv = []string{program, "-listen", addr, rest}
	}
	sdktest.Run(t, sdktest.Build(t, "."), *spec)
}

// startReceiverProcess starts the receiver and returns its executable, and where it listens.
func startReceiverProcess(t *testing.T) (program, addr string) {
	t.Helper()
	program = sdktest.Build(t, "./receiver")
	cmd := exec.Command(program, "-listen", "127.0.0.1:0", "-quiet")
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "listening on ")
	require.True(t, ok, line)
	return program, addr
}
