package state

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// roleEnv makes the test binary one of the processes below; pathEnv names its database.
const (
	roleEnv = "RELEVO_STATE_TEST_ROLE"
	pathEnv = "RELEVO_STATE_TEST_PATH"
)

const writers = 3

// role prepares this test binary to run as another process.
func role(t *testing.T, name, path string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), roleEnv+"="+name, pathEnv+"="+path)
	if name == "open-unprivileged" && os.Geteuid() == 0 {
		// Permissions mean nothing to root: give them all away but keep the files.
		dir := filepath.Dir(path)
		for _, p := range []string{path, dir} {
			require.NoError(t, os.Chown(p, 65534, 65534))
		}
		for ; dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
			require.NoError(t, os.Chmod(dir, 0o755))
		}
		copied := filepath.Join(filepath.Dir(path), "exe")
		require.NoError(t, os.Link(exe, copied))
		cmd.Path = copied
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	return cmd
}

func runRole(name string) int {
	ctx, path := context.Background(), os.Getenv(pathEnv)
	var err error
	switch name {
	case "open", "open-unprivileged":
		var d *DB
		if d, err = Open(ctx, path); err == nil {
			err = d.Close()
		}
	case "write":
		err = writeOn(ctx, path)
	case "fill":
		err = fill(ctx, path)
	default:
		err = errors.New("no such role")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// writeOn moves the positions on, and prints each once it is stored, until it is killed.
func writeOn(ctx context.Context, path string) error {
	d, err := Open(ctx, path)
	if err != nil {
		return err
	}
	var g errgroup.Group
	for w := range writers {
		pipeline := strconv.Itoa(w)
		n, err := stored(ctx, d, pipeline)
		if err != nil {
			return err
		}
		g.Go(func() error {
			for {
				n++
				if err := d.StoreDiscard(ctx, pipeline, Discard{"sink", strconv.Itoa(n)}, nil); err != nil {
					return err
				}
				if err := d.StorePosition(ctx, pipeline, "s", fmt.Append(nil, n)); err != nil {
					return err
				}
				if _, err := os.Stdout.WriteString(fmt.Sprintf("%s %d\n", pipeline, n)); err != nil {
					return err
				}
			}
		})
	}
	return g.Wait()
}

func stored(ctx context.Context, d *DB, pipeline string) (int, error) {
	p, err := d.Position(ctx, pipeline, "s")
	if err != nil || p == nil {
		return 0, err
	}
	return strconv.Atoi(string(p.Value))
}

// I2: what a process was told is stored is there after its SIGKILL, wherever that hits.
func TestStoredSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	printed := make([]int, writers)
	const rounds = 15
	for range rounds {
		cmd := role(t, "write", path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())

		lines, kill := bufio.NewReader(out), 1+rand.IntN(200)
		for n := 0; ; n++ {
			line, err := lines.ReadString('\n')
			if err != nil {
				break // a line cut by the kill counts as not printed
			}
			var w, v int
			_, err = fmt.Sscanf(line, "%d %d\n", &w, &v)
			require.NoError(t, err)
			printed[w] = v
			if n == kill {
				require.NoError(t, cmd.Process.Kill())
			}
		}
		require.Error(t, cmd.Wait())
		require.True(t, cmd.ProcessState.Sys().(syscall.WaitStatus).Signaled(), "ended by itself: %v", cmd.ProcessState)

		d, err := Open(t.Context(), path)
		require.NoError(t, err, "the lock died with its process")
		for w := range writers {
			got, err := stored(t.Context(), d, strconv.Itoa(w))
			require.NoError(t, err)
			require.GreaterOrEqual(t, got, printed[w], "a stored position is lost")
			require.LessOrEqual(t, got, printed[w]+1, "a position that nobody stored")
			have := map[Discard]bool{}
			for _, x := range discards(t, d, strconv.Itoa(w)) {
				have[x] = true
			}
			for n := 1; n <= got; n++ { // each was stored before the position
				require.True(t, have[Discard{"sink", strconv.Itoa(n)}], "discard %d is lost", n)
			}
			printed[w] = got
		}
		require.NoError(t, d.Close())
	}
	t.Log("positions stored:", printed)
}

// fill writes until the file system refuses, then makes room and writes again.
func fill(ctx context.Context, path string) error {
	signal.Ignore(syscall.SIGXFSZ) // the write's error is wanted, not the signal
	d, err := Open(ctx, path)
	if err != nil {
		return err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	room := limit.Cur
	limit.Cur = 256 << 10
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	value := []byte(strings.Repeat("p", 20<<10))
	n := 0
	for ; err == nil && n < 1000; n++ {
		err = d.StorePosition(ctx, strconv.Itoa(n), "s", value)
	}
	fmt.Printf("after %d: %v\n", n, err)
	if err == nil {
		return errors.New("the limit was not noticed")
	}
	if again := d.StorePosition(ctx, "small", "s", value); again == nil {
		return errors.New("stored without room")
	}
	limit.Cur = room
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if err := d.StorePosition(ctx, "last", "s", value); err != nil {
		return fmt.Errorf("with room again: %w", err)
	}
	for i := range n - 1 {
		if p, err := d.Position(ctx, strconv.Itoa(i), "s"); err != nil || p == nil {
			return fmt.Errorf("position %d is gone: %w", i, err)
		}
	}
	return nil // not closed: as a crash would leave it
}

// Disk full: an error, nothing stored before is lost, and it goes on by itself once there is room.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	out, err := role(t, "fill", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "store position of pipeline")
	require.Contains(t, string(out), "the disk, or a limit on file sizes, refuses")

	d := open(t, path)
	p, err := d.Position(t.Context(), "last", "s")
	require.NoError(t, err)
	require.NotNil(t, p)
}
