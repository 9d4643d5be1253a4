package pgserver

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// templates holds one initialised data directory per Binaries.Dir. initdb takes ten times as long as a copy of what it
// made. (Copies share their system identifier: two of them are no primary and standby to each other.)
var templates struct {
	mu  sync.Mutex
	dir map[string]string
}

// newCluster makes a directory with a fresh data directory in it, both owned by the user that runs PostgreSQL. Its path
// is short: it holds the unix socket.
func newCluster(ctx context.Context, bin Binaries, hba []string) (string, error) {
	tmpl, err := template(ctx, bin)
	if err != nil {
		return "", err
	}
	dir, err := ownedDir()
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	// cp and not os.CopyFS: owners and modes are kept, and blocks are shared where the file system can.
	if out, err := exec.CommandContext(ctx, "cp", "-a", tmpl, data).CombinedOutput(); err != nil {
		return "", fmt.Errorf("copy the template cluster: %w: %s", err, out)
	}
	if len(hba) > 0 {
		if err := prependHBA(data, hba); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func prependHBA(data string, lines []string) error {
	name := filepath.Join(data, "pg_hba.conf")
	old, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("read pg_hba.conf: %w", err)
	}
	// The file exists already, and so keeps its owner.
	text := strings.Join(lines, "\n") + "\n" + string(old)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write pg_hba.conf: %w", err)
	}
	return nil
}

func template(ctx context.Context, bin Binaries) (string, error) {
	templates.mu.Lock()
	defer templates.mu.Unlock()
	if dir, ok := templates.dir[bin.Dir]; ok {
		return dir, nil
	}
	dir, err := ownedDir()
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	cmd, err := bin.command("initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	if err != nil {
		return "", err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("run initdb: %w: %s", err, lastLines(string(out), 5))
	}
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	if templates.dir == nil {
		templates.dir = make(map[string]string)
	}
	templates.dir[bin.Dir] = data
	return data, nil
}

// ownedDir makes a directory for the user that runs PostgreSQL. The reaper removes it at the latest.
func ownedDir() (string, error) {
	r, err := theReaper()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(r.dir, "")
	if err != nil {
		return "", err
	}
	cred, err := credential()
	if err != nil || cred == nil {
		return dir, err
	}
	return dir, os.Chown(dir, int(cred.Uid), int(cred.Gid))
}
