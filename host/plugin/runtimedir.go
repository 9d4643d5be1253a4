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

// RuntimeDir makes (0700) and returns a directory for the sockets of this host: in $RUNTIME_DIRECTORY (systemd's), in
// $XDG_RUNTIME_DIR/relevo, or a temporary one. remove deletes what was made.
func RuntimeDir() (dir string, remove func(), err error) {
	base, err := runtimeBase()
	if err != nil {
		return "", nil, err
	}
	if base == "" {
		dir, err = os.MkdirTemp("", "relevo-") // 0700
		if err != nil {
			return "", nil, fmt.Errorf("make runtime directory: %w", err)
		}
	} else if dir, err = makeHexDir(base); err != nil {
		return "", nil, fmt.Errorf("make runtime directory: %w", err)
	}
	return dir, func() { removeAll(dir) }, nil
}

// runtimeBase is the directory in which the one of this host is made; "": the temporary directory.
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
	dir, err := makeHexDir(abs)
	if err != nil {
		return "", fmt.Errorf("make socket directory: %w", err)
	}
	return dir, nil
}

// makeHexDir makes a 0700 directory with a short name of its own.
func makeHexDir(base string) (string, error) {
	for {
		var b [4]byte
		_, _ = rand.Read(b[:]) // never an error
		dir := filepath.Join(base, hex.EncodeToString(b[:]))
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
