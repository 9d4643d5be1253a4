package pgserver

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// script is told on its standard input which postmasters run ("+ PID") and which have ended ("- PID"). The end of the input
// is the end of the process that owns them, however it came: exit, panic or SIGKILL. An immediate shutdown then ends what
// is left, frozen servers too, and the directory goes.
//
// (Linux could bind the children to us with PR_SET_PDEATHSIG; that signal comes when the *thread* that forked them ends,
// is not known elsewhere, and removes no directory.)
const script = `
trap '' HUP INT TERM
pids=
while read -r op pid; do
	case $op in
	+) pids="$pids $pid" ;;
	-) rest=
		for p in $pids; do [ "$p" = "$pid" ] || rest="$rest $p"; done
		pids=$rest ;;
	esac
done
for p in $pids; do kill -QUIT "$p"; kill -CONT "$p"; done
n=0
for p in $pids; do
	while [ $n -lt 100 ] && kill -0 "$p"; do sleep 0.1; n=$((n+1)); done
done
rm -rf "$1"
`

// reaper cleans up after this process: a shell of its own session that outlives us for a moment.
type reaper struct {
	dir string // everything on disk is in here

	mu sync.Mutex
	in io.Writer
}

// theReaper starts the reaper at its first call. It has no end of its own: it ends after us.
var theReaper = sync.OnceValues(func() (*reaper, error) {
	dir, err := os.MkdirTemp(tempRoot(), "relevo-pg-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // the user that runs PostgreSQL has to get in
		return nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", script, "relevo-pg-reaper", dir)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	in, err := cmd.StdinPipe() // close-on-exec: no other child keeps it open
	if err != nil {
		return nil, err
	}
	// Output goes to /dev/null: whoever reads ours would wait for the reaper.
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the reaper: %w", err)
	}
	return &reaper{dir: dir, in: in}, nil
})

// tempRoot is a directory with a short name that every user can enter, which a $TMPDIR need not be.
func tempRoot() string {
	const short = 40 // leaves enough of the 107 bytes of a socket's path
	dir := os.TempDir()
	info, err := os.Stat(dir)
	if len(dir) > short || err != nil || os.Geteuid() == 0 && info.Mode().Perm()&0o001 == 0 {
		return "/tmp"
	}
	return dir
}

func (r *reaper) add(pid int)    { r.tell("+", pid) }
func (r *reaper) remove(pid int) { r.tell("-", pid) }

// tell can fail only when somebody killed the reaper, and then there is nothing better to do.
func (r *reaper) tell(op string, pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, _ = fmt.Fprintf(r.in, "%s %d\n", op, pid)
}

// Adopt hands another child of this process to the reaper: it is ended (SIGQUIT) when this process ends. release is called
// once the child has ended by itself.
func Adopt(pid int) (release func(), err error) {
	r, err := theReaper()
	if err != nil {
		return nil, err
	}
	r.add(pid)
	return func() { r.remove(pid) }, nil
}
