package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/state"
)

// memory is the host's state as the doctor sees it: nil where there is none yet, or where a running host has it.
type memory struct{ db *state.DB }

func (m *memory) close() {
	if m.db != nil {
		_ = m.db.Close()
	}
}

func (m *memory) hostID() string {
	if m.db == nil {
		return ""
	}
	return m.db.HostID()
}

func (m *memory) position(ctx context.Context, pipeline, source string) ([]byte, error) {
	if m.db == nil {
		return nil, nil
	}
	p, err := m.db.Position(ctx, pipeline, source)
	if p == nil || err != nil {
		return nil, err
	}
	return p.Value, nil
}

// examineHost looks at what the host itself needs: a place for its state, and its port.
func examineHost(ctx context.Context, s config.Settings) (*memory, []finding) {
	m, stateFinding, running := examineState(ctx, s.State)
	found := []finding{stateFinding}
	if s.Listen != "" {
		found = append(found, examineListen(ctx, s.Listen, running))
	}
	return m, found
}

// examineState opens the state database if it is there; it is not made. running: another host has it.
func examineState(ctx context.Context, path string) (m *memory, f finding, running bool) {
	m = &memory{}
	f = finding{Severity: severityOK, Plugin: "host", Code: "state"}
	switch _, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		dir := filepath.Dir(path)
		if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
			f.Severity, f.Code = severityError, "state_directory"
			f.Message = fmt.Sprintf("the directory %s for the state database cannot be written to: %s", dir, err)
			f.Hint = "make it, or set state to a file elsewhere"
			return m, f, false
		}
		f.Message = fmt.Sprintf("%s will be made; no position is stored yet", path)
		return m, f, false
	case err != nil:
		f.Severity, f.Code, f.Message = severityError, "state_unreadable", err.Error()
		return m, f, false
	}
	db, err := state.Open(ctx, path)
	switch {
	case errors.Is(err, state.ErrLocked):
		f.Code, f.Message = "state_in_use", path+" is in use by a running relevo; stored positions are not looked at"
		return m, f, true
	case err != nil:
		f.Severity, f.Code, f.Message = severityError, "state_unreadable", err.Error()
		return m, f, false
	}
	m.db = db
	f.Message = path + " is readable"
	return m, f, false
}

// examineListen takes the port for a moment. running: a host is up, and is likely to have it.
func examineListen(ctx context.Context, address string, running bool) finding {
	f := finding{Severity: severityOK, Plugin: "host", Code: "listen", Message: address + " is free"}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		_ = l.Close()
	case errors.Is(err, syscall.EADDRINUSE) && running:
		f.Message = address + " is in use, as the state is: relevo is running"
	case errors.Is(err, syscall.EADDRINUSE):
		f.Severity, f.Code, f.Message = severityError, "port_taken", "another program listens on "+address
		f.Hint = "set listen to another address, or end the other program"
	default:
		f.Severity, f.Code, f.Message = severityError, "listen", err.Error()
	}
	return f
}
