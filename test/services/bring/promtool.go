package bring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/relevo-io/relevo/internal/pgserver"
)

// PromtoolVariable names promtool, which checks rules of Prometheus, to the tests.
const PromtoolVariable = "RELEVO_TEST_PROMTOOL"

// Promtool gets promtool where it is not there: out of Debian's package of Prometheus, without installing that. That it can't
// be had is no error: the test that needs it says so.
func Promtool(ctx context.Context, say Say) (*Service, error) {
	s := &Service{Name: "promtool", Close: func() error { return nil }}
	path, err := FindPromtool()
	if err != nil {
		began := time.Now()
		path, err = fetchPromtool(ctx)
		if err != nil {
			say("promtool: its test will be skipped: %v", err)
			return s, nil
		}
		say("promtool: taken out of Debian's package into %s in %s", path, time.Since(began).Round(time.Millisecond))
	} else {
		say("promtool: %s", path)
	}
	s.Env = []string{PromtoolVariable + "=" + path}
	return s, nil
}

// FindPromtool looks for promtool in the environment, in PATH, and where Promtool puts it.
func FindPromtool() (string, error) {
	if path := os.Getenv(PromtoolVariable); path != "" {
		return path, nil
	}
	if path, err := exec.LookPath("promtool"); err == nil {
		return path, nil
	}
	path, err := cachedPromtool()
	if err == nil {
		_, err = os.Stat(path)
	}
	return path, err
}

func cachedPromtool() (string, error) {
	cache, err := pgserver.CacheDir()
	return filepath.Join(cache, "promtool"), err
}

// fetchPromtool downloads the package, which any user may, and unpacks one file of it.
func fetchPromtool(ctx context.Context) (path string, err error) {
	if !have("apt-get") || !have("dpkg-deb") {
		return "", errors.New("no apt-get here: install Prometheus, or set " + PromtoolVariable)
	}
	if path, err = cachedPromtool(); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(path), ".fetch-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	download := []string{"download", "-q", "prometheus"}
	if err := run(ctx, nil, tmp, "apt-get", download...); err != nil {
		// A fresh machine has no package lists yet. Who is not root can't get them.
		if update := run(ctx, nil, "/", "apt-get", "update"); update != nil {
			return "", errors.Join(err, update)
		}
		if err := run(ctx, nil, tmp, "apt-get", download...); err != nil {
			return "", err
		}
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "prometheus_*.deb"))
	if err != nil || len(debs) != 1 {
		return "", fmt.Errorf("download Debian's package of Prometheus: %d files came", len(debs))
	}
	if err := run(ctx, nil, tmp, "dpkg-deb", "-x", debs[0], "x"); err != nil {
		return "", err
	}
	return path, os.Rename(filepath.Join(tmp, "x", "usr", "bin", "promtool"), path)
}
