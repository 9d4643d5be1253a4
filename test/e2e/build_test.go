package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/natstest"
)

const module = "github.com/relevo-io/relevo/"

// executables are what a system consists of, by file name. The plugins stand beside the host, which finds them there.
var executables = map[string]string{
	"relevo":               "host/cmd/relevo",
	"source-postgres-poll": "plugins/source-postgres-poll",
	"sink-nats":            "plugins/sink-nats",
	"source-null":          "test/plugins/nullsource",
	"sink-null":            "test/plugins/nullsink",
	"sink-good":            "test/plugins/hostile", // as it calls itself
}

// buildDir is made by TestMain and removed with everything in it.
var buildDir string

// build builds the executables once, with failpoints, and with the race detector if this test has it.
var build = sync.OnceValue(func() error {
	for name, pkg := range executables {
		args := []string{"build", "-tags", "failpoint", "-ldflags", "-w", "-o", filepath.Join(buildDir, name)}
		if raceEnabled {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, module+pkg)...).CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return nil
})

func TestMain(m *testing.M) {
	natstest.RunChild()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "relevo-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	buildDir = dir
	defer func() { _ = os.RemoveAll(dir) }()
	return m.Run()
}

func executable(t *testing.T, name string) string {
	t.Helper()
	require.NoError(t, build())
	return filepath.Join(buildDir, name)
}

// places are for systems that run at the same time: each has four processes under load, and a time-out that is met on a
// quiet machine is missed on a crowded one.
var places = make(chan struct{}, 3)

// takePlace waits for a place, until the end of the test.
func takePlace(t *testing.T) {
	t.Helper()
	places <- struct{}{}
	t.Cleanup(func() { <-places })
}
