package bring

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"time"

	"github.com/relevo-io/relevo/internal/pgserver"
)

// packages are what programs in another language need beside their interpreter. They are kept in the cache, once for each
// state of the files that list them.
type packages struct {
	language string
	variable string   // of the environment, by which tests find them
	lists    []string // files with names and versions; paths are of the repository's root, where services is run
	debian   []string // the interpreter and its installer
	install  func(ctx context.Context, lists []string, dir string) error
	probe    func(ctx context.Context, dir string) error // is what install makes there, and whole?
	value    func(dir string) string                     // of the variable
}

// bring installs the packages where they are not there. That they can't be had is no error: the tests that need them are
// skipped and say so, and whoever asked for all tests hears it from them.
func (p packages) bring(ctx context.Context, say Say) *Service {
	s := &Service{Name: p.language, Close: func() error { return nil }}
	if v := os.Getenv(p.variable); v != "" {
		say("%s: %s, as %s says", p.language, v, p.variable)
		s.Env = []string{p.variable + "=" + v}
		return s
	}
	dir, err := p.ready(ctx, say)
	if err != nil {
		say("%s: its tests will be skipped: %v", p.language, err)
		return s
	}
	s.Env = []string{p.variable + "=" + p.value(dir)}
	return s
}

// ready is the directory with the packages.
func (p packages) ready(ctx context.Context, say Say) (dir string, err error) {
	cache, err := pgserver.CacheDir()
	if err != nil {
		return "", err
	}
	sum := fnv.New64a()
	lists := make([]string, len(p.lists))
	for i, name := range p.lists {
		if lists[i], err = filepath.Abs(name); err != nil {
			return "", err
		}
		text, err := os.ReadFile(lists[i])
		if err != nil {
			return "", err
		}
		_, _ = sum.Write(text)
	}
	dir = filepath.Join(cache, fmt.Sprintf("%s-%016x", p.language, sum.Sum64()))
	if p.probe(ctx, dir) == nil {
		say("%s: packages in %s", p.language, dir)
		return dir, nil
	}
	began := time.Now()
	err = p.fetch(ctx, lists, dir)
	if err != nil && os.Geteuid() == 0 && have("apt-get") {
		say("%s: not without %v, installing Debian's", p.language, p.debian)
		err = errors.Join(err, aptInstall(ctx, p.debian...))
		if again := p.fetch(ctx, lists, dir); again == nil {
			err = nil
		}
	}
	if err != nil {
		return "", err
	}
	say("%s: packages fetched into %s in %s", p.language, dir, time.Since(began).Round(time.Millisecond))
	return dir, nil
}

// fetch makes dir, whole or not at all, whoever else does the same.
func (p packages) fetch(ctx context.Context, lists []string, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".fetch-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := p.install(ctx, lists, tmp); err != nil {
		return err
	}
	if p.probe(ctx, dir) == nil { // somebody was faster
		return nil
	}
	if err := os.RemoveAll(dir); err != nil { // an interpreter that is gone, for example
		return err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return err
	}
	return p.probe(ctx, dir)
}

// aptInstall installs packages of Debian or Ubuntu; as root.
func aptInstall(ctx context.Context, names ...string) error {
	env := []string{"DEBIAN_FRONTEND=noninteractive"}
	install := append([]string{"-o", "DPkg::Lock::Timeout=120", "install", "-y", "--no-install-recommends"}, names...)
	if run(ctx, env, "/", "apt-get", install...) == nil {
		return nil
	}
	// A fresh machine has no package lists yet.
	if err := run(ctx, env, "/", "apt-get", "update"); err != nil {
		return err
	}
	return run(ctx, env, "/", "apt-get", install...)
}
