package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

const (
	describeTimeout = 10 * time.Second
	describeWait    = time.Second // for pipes that somebody keeps open
	describeMost    = 8 << 20     // a config schema has tens of KiB
)

// Describe runs `path describe` and returns what the plugin says of itself. It takes at most 10 s. The error is a
// *LaunchError.
func Describe(ctx context.Context, path string) (*pluginv1.DescribeResponse, error) {
	return describe(ctx, path, describeTimeout)
}

func describe(ctx context.Context, path string, timeout time.Duration) (*pluginv1.DescribeResponse, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("resolve plugin path: %w", err)
	}
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, log := &capped{most: describeMost}, newLineLog(slog.New(slog.DiscardHandler))
	stderr := log.splitter("stderr")
	cmd := exec.CommandContext(ctx, path, "describe")
	cmd.Env = allowed(os.Environ())
	cmd.Stdout, cmd.Stderr = out, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = describeWait
	if err := cmd.Start(); err != nil {
		return nil, explainExec(path, err)
	}
	err = cmd.Wait()
	stderr.flush()
	if errors.Is(err, exec.ErrWaitDelay) {
		_ = cmd.Cancel() // something that it started keeps the pipes open, and with them the group's number
	}
	fault := func(message, hint string) error {
		return &LaunchError{Code: CodeNotAPlugin, Path: path, Message: message, Hint: hint, LastLogs: log.last(), Err: err}
	}
	switch {
	case parent.Err() != nil:
		return nil, fmt.Errorf("describe plugin %s: %w", path, context.Cause(parent))
	case ctx.Err() != nil:
		return nil, fault(fmt.Sprintf("`describe` did not end within %s", timeout),
			"a relevo plugin prints its description and exits at once")
	case err != nil && !errors.Is(err, exec.ErrWaitDelay):
		return nil, fault(fmt.Sprintf("`describe` ended with %v", err),
			"a program that is no relevo plugin does not know that command")
	case out.over:
		return nil, fault(fmt.Sprintf("`describe` printed more than %d bytes", describeMost), "it is no relevo plugin")
	}
	d := &pluginv1.DescribeResponse{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(out.buf.Bytes(), d); err != nil {
		return nil, fault(fmt.Sprintf("`describe` printed no description but %s", quoteStart(out.buf.Bytes())),
			"a relevo plugin prints one JSON object to stdout, and everything else to stderr")
	}
	return d, checkDescription(path, d)
}

// checkDescription holds a description against the name of the file.
func checkDescription(path string, d *pluginv1.DescribeResponse) error {
	kind, ok := kindOf(d)
	if !ok || d.GetName() == "" {
		return &LaunchError{
			Code: CodeNotAPlugin, Path: path, Message: "`describe` names no kind or no name",
			Hint: "a description has at least \"name\" and \"kind\": PLUGIN_KIND_SOURCE or PLUGIN_KIND_SINK",
		}
	}
	if want, _, ok := split(filepath.Base(path)); ok && want != kind {
		return &LaunchError{
			Code: CodeWrongKind, Path: path, Message: fmt.Sprintf("it is called a %s and says that it is a %s", want, kind),
			Hint: fmt.Sprintf("rename it to %s-%s, and use it as a %s", kind, d.GetName(), kind),
		}
	}
	return nil
}

func kindOf(d *pluginv1.DescribeResponse) (Kind, bool) {
	switch d.GetKind() {
	case pluginv1.PluginKind_PLUGIN_KIND_SOURCE:
		return KindSource, true
	case pluginv1.PluginKind_PLUGIN_KIND_SINK:
		return KindSink, true
	}
	return "", false
}

func quoteStart(b []byte) string {
	const most = 80
	s := clean(strings.TrimSpace(string(b)))
	if s == "" {
		return "nothing"
	}
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// capped keeps the beginning of what is written to it.
type capped struct {
	buf  bytes.Buffer // a field: an embedded one's ReadFrom would pass Write by
	most int
	over bool
}

func (c *capped) Write(b []byte) (int, error) {
	n := len(b)
	if room := c.most - c.buf.Len(); n > room {
		c.over = true
		b = b[:room]
	}
	c.buf.Write(b)
	return n, nil
}
