package plugin

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// maxSocketPath is what fits into sun_path with its end: 108 bytes on Linux, 104 on Darwin.
var maxSocketPath = map[string]int{"darwin": 103}[runtime.GOOS]

func init() {
	if maxSocketPath == 0 {
		maxSocketPath = 107
	}
}

// socketName is the longest name that go-plugin's server makes in the directory it is given.
const socketName = "plugin4294967295"

// lockName is a file in a runtime directory that its host holds locked as long as it lives, however it ends.
const lockName = "lock"

// RuntimeDir makes (0700) and returns a directory for the sockets of this host: in $RUNTIME_DIRECTORY (systemd's), in
// $XDG_RUNTIME_DIR/relevo, or in the temporary directory. remove deletes what was made. What hosts that were killed have
// left there is removed on the way.
func RuntimeDir() (dir string, remove func(), err error) {
	base, err := runtimeBase()
	if err != nil {
		return "", nil, err
	}
	prefix := ""
	if base == "" {
		base, prefix = os.TempDir(), "relevo-"
	}
	sweep(base, prefix)
	for {
		dir, err := makeHexDir(base, prefix)
		if err != nil {
			return "", nil, fmt.Errorf("make runtime directory: %w", err)
		}
		lock, err := lockDir(dir, os.O_CREATE)
		if err != nil {
			removeAll(dir)
			return "", nil, fmt.Errorf("lock runtime directory: %w", err)
		}
		if lock == nil {
			continue // a sweep came between the making and the locking, and has removed it
		}
		return dir, func() {
			removeAll(dir)
			_ = lock.Close()
		}, nil
	}
}

// sweep removes the directories of hosts that are no more.
func sweep(base, prefix string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return // making ours will say why
	}
	for _, e := range entries {
		name, ok := strings.CutPrefix(e.Name(), prefix)
		dir := filepath.Join(base, e.Name())
		if _, err := hex.DecodeString(name); !ok || len(name) != 8 || err != nil || private(dir) != nil {
			continue // somebody else's
		}
		lock, err := lockDir(dir, 0)
		if err != nil || lock == nil {
			continue // no lock file: not a host's. Locked: it lives.
		}
		removeAll(dir)
		_ = lock.Close()
	}
}

// lockDir takes the lock of a directory. Nil: another has it, or the directory is no more.
func lockDir(dir string, create int) (*os.File, error) {
	path := filepath.Join(dir, lockName)
	f, err := os.OpenFile(path, os.O_RDWR|create, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		var mine, there fs.FileInfo
		if mine, err = f.Stat(); err == nil {
			if there, err = os.Stat(path); err == nil && os.SameFile(mine, there) {
				return f, nil
			}
		}
	}
	_ = f.Close()
	if err == nil || errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return nil, err
}

// runtimeBase is the directory in which the one of this host is made; "": there is none for the purpose.
func runtimeBase() (string, error) {
	if list := filepath.SplitList(os.Getenv("RUNTIME_DIRECTORY")); len(list) > 0 && list[0] != "" {
		return list[0], nil // the service manager made it
	}
	xdg := os.Getenv("XDG_RUNTIME_DIR")
	if xdg == "" {
		return "", nil
	}
	if _, err := os.Stat(xdg); errors.Is(err, fs.ErrNotExist) {
		return "", nil // a variable that outlived its session (su, cron)
	}
	base := filepath.Join(xdg, "relevo")
	if err := os.Mkdir(base, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("make runtime directory: %w", err)
	}
	return base, private(base)
}

// private refuses a directory that somebody else made, or can write to.
func private(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at runtime directory: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("runtime directory %s belongs to uid %d: remove it, or set $RUNTIME_DIRECTORY to a directory of your own", dir, st.Uid)
	}
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("runtime directory %s has mode %v: it must be a directory that only its owner can enter (chmod 0700)", dir, info.Mode())
	}
	return nil
}

// socketDir makes the directory of one plugin process, and sees to it that a socket in it has a path short enough.
func socketDir(runtimeDir string) (string, error) {
	abs, err := filepath.Abs(runtimeDir)
	if err != nil {
		return "", fmt.Errorf("resolve runtime directory: %w", err)
	}
	if n := len(filepath.Join(abs, "01234567", socketName)); n > maxSocketPath {
		return "", fmt.Errorf("runtime directory %s is too long: the path of a socket in it has %d bytes, and the system allows %d; set $XDG_RUNTIME_DIR or $TMPDIR to a shorter one", abs, n, maxSocketPath)
	}
	dir, err := makeHexDir(abs, "")
	if err != nil {
		return "", fmt.Errorf("make socket directory: %w", err)
	}
	return dir, nil
}

// makeHexDir makes a 0700 directory with a short name of its own.
func makeHexDir(base, prefix string) (string, error) {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never an error
		dir := filepath.Join(base, prefix+hex.EncodeToString(b[:]))
		err := os.Mkdir(dir, 0o700)
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", err
		}
	}
}

// removeAll deletes a directory of sockets. What it can't delete is empty by then, or the plugin's own doing.
func removeAll(dir string) { _ = os.RemoveAll(dir) }
