package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/relevo-io/relevo/internal/pgserver"
)

// process is a child of the demo. Its output goes to a log file.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how, once done is closed
}

// start starts a child. It ends with us, however we end.
func start(dir, name string, env []string, exe string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd = exec.Command(exe, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us: we end the children in order
	if err := p.launch(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) launch() error {
	if err := p.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	release, err := pgserver.Adopt(p.cmd.Process.Pid)
	if err != nil {
		return errors.Join(err, p.cmd.Process.Kill(), p.cmd.Wait())
	}
	go func() { // waited for by whoever waits for done: stop, at the latest
		p.err = p.cmd.Wait()
		release()
		close(p.done)
	}()
	return nil
}

// startNATS starts the NATS server and returns its URL. It ends when its standard input does, which is ours to close.
func startNATS(s settings) (*process, string, error) {
	p := &process{name: "nats", log: filepath.Join(s.dir, "nats.log"), done: make(chan struct{})}
	p.cmd = exec.Command(s.self, "nats", "-dir", filepath.Join(s.dir, "jetstream"))
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, "", err
	}
	defer log.Close()
	p.cmd.Stderr = log
	if _, err := p.cmd.StdinPipe(); err != nil {
		return nil, "", err
	}
	r, w, err := os.Pipe() // not StdoutPipe: Wait would close it under the reader
	if err != nil {
		return nil, "", err
	}
	defer r.Close()
	p.cmd.Stdout = w
	err = p.launch()
	_ = w.Close()
	if err != nil {
		return nil, "", err
	}
	url, err := bufio.NewReader(r).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, "", fmt.Errorf("read the address of NATS: %w", err)
	}
	if url = strings.TrimSpace(url); url == "" {
		<-p.done
		return nil, "", p.ended()
	}
	return p, url, nil
}

// running says whether the process has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ended describes the end of a process that was not to end.
func (p *process) ended() error {
	why := "exit status 0"
	if p.err != nil {
		why = p.err.Error()
	}
	tail, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(tail)), "\n")
	return fmt.Errorf("%s ended (%s): %s", p.name, why, strings.Join(lines[max(0, len(lines)-5):], "\n    "))
}

// kill ends the process without a word to it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// stop asks the process to end and returns how it did. It is killed when it takes longer than limit.
func (p *process) stop(limit time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.done:
		return p.err
	case <-timer.C:
		p.kill()
		return fmt.Errorf("%s did not end within %s", p.name, limit)
	}
}
