package plugin

import (
	"debug/elf"
	"debug/macho"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"syscall"
)

// Codes of a LaunchError, for programs.
const (
	CodeNotFound           = "plugin_not_found"
	CodeBadName            = "plugin_bad_name"
	CodeNotExecutable      = "plugin_not_executable"
	CodeWrongFormat        = "plugin_wrong_format"
	CodeMissingInterpreter = "plugin_missing_interpreter"
	CodeExec               = "plugin_exec"
	CodeExited             = "plugin_exited"
	CodeHandshakeTimeout   = "plugin_handshake_timeout"
	CodeProtocolVersion    = "plugin_protocol_version"
	CodeNotGRPC            = "plugin_not_grpc"
	CodeSocket             = "plugin_socket"
	CodePeer               = "plugin_peer"
	CodeUnhealthy          = "plugin_unhealthy"
	CodeNotAPlugin         = "plugin_not_a_plugin"
	CodeWrongKind          = "plugin_wrong_kind"
)

// LaunchError says why an executable could not be found, described or started as a plugin.
type LaunchError struct {
	Code     string
	Path     string   // executable, or the name looked for
	Message  string   // what happened: a clause about the plugin ("it …")
	Hint     string   // what to do
	LastLogs []string // what it wrote to stderr last
	Err      error    // may be nil
}

// Error is a sentence with what to do, and the last lines of stderr below it.
func (e *LaunchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "plugin %s: %s", e.Path, e.Message)
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	if len(e.LastLogs) > 0 {
		b.WriteString("; its last lines:")
		for _, l := range e.LastLogs {
			b.WriteString("\n  | ")
			b.WriteString(l)
		}
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *LaunchError) Unwrap() error { return e.Err }

// explain turns what is known after a start that did not succeed into one error. The order is that of the start: the
// first thing that went wrong is the cause of the others.
func explain(s Settings, run *osProcess, peers *peerCredentials, err error) error {
	run.mu.Lock()
	startErr, failure, aborted := run.startErr, run.failure, run.aborted
	run.mu.Unlock()
	if startErr != nil {
		return explainExec(s.Path, startErr)
	}
	var e LaunchError
	switch checked, ok := errors.AsType[*LaunchError](failure); {
	case ok:
		e = *checked
	case errors.Is(failure, errExited):
		e = LaunchError{
			Code:    CodeExited,
			Message: fmt.Sprintf("it exited before the handshake (%s)", exitText(run.exitErr())),
			Hint:    "its own words say why; a program that is no relevo plugin also ends like this",
			Err:     run.exitErr(),
		}
	case errors.Is(aborted, errStartTimeout) && errors.Is(failure, errStartTimeout):
		e = LaunchError{
			Code:    CodeHandshakeTimeout,
			Message: fmt.Sprintf("it printed no handshake line within %s", s.StartTimeout),
			Hint:    "if it is only slow to start, raise process.start_timeout; else it is no relevo plugin",
			Err:     aborted,
		}
	case errors.Is(aborted, errStartTimeout):
		e = LaunchError{
			Code:    CodeUnhealthy,
			Message: fmt.Sprintf("it made the handshake and then answered no health check within %s", s.StartTimeout),
			Hint:    "it hangs while it starts, or its process.start_timeout is too short",
			Err:     aborted,
		}
	case aborted != nil:
		return fmt.Errorf("start plugin %s: %w", s.Path, aborted)
	case peers.refusal() != nil:
		e = LaunchError{
			Code:    CodePeer,
			Message: peers.refusal().Error(),
			Hint:    "a plugin must not leave its process group (setsid, daemonize), and nobody else may listen on its socket",
			Err:     peers.refusal(),
		}
	case errors.Is(err, errNotHealthy) && run.exitedByItself():
		e = LaunchError{
			Code:    CodeExited,
			Message: fmt.Sprintf("it exited right after the handshake (%s)", exitText(run.exitErr())),
			Hint:    "its own words say why; a plugin also exits at the end of its stdin, which a wrapper must pass on",
			Err:     run.exitErr(),
		}
	case errors.Is(err, errNotHealthy):
		e = LaunchError{
			Code:    CodeUnhealthy,
			Message: "it made the handshake and is " + err.Error(),
			Hint:    "it must listen before it prints the handshake line, and its health service must say SERVING for \"plugin\"",
			Err:     err,
		}
	default:
		e = LaunchError{Code: CodeExec, Message: "it did not start: " + err.Error(), Err: err}
	}
	e.Path, e.LastLogs = s.Path, run.log.last()
	return &e
}

func exitText(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return err.Error()
}

// explainExec says why the kernel would not execute a file. The errno alone misleads: a missing interpreter is "no such
// file" about a file that is there.
func explainExec(path string, err error) error {
	e := &LaunchError{Code: CodeExec, Path: path, Message: "it could not be executed: " + err.Error(), Err: err}
	info, serr := os.Stat(path)
	switch {
	case errors.Is(serr, fs.ErrNotExist):
		e.Code, e.Message, e.Hint = CodeNotFound, "there is no such file", "install it, or correct the plugin directory"
	case serr != nil:
	case info.IsDir():
		e.Code, e.Message, e.Hint = CodeNotExecutable, "it is a directory", "a plugin is an executable file"
	case errors.Is(err, fs.ErrPermission) && info.Mode().Perm()&0o111 == 0:
		e.Code, e.Message, e.Hint = CodeNotExecutable, "it is not executable", "run: chmod +x "+path
	case errors.Is(err, fs.ErrPermission):
		e.Code, e.Message = CodeNotExecutable, "this user may not execute it"
		e.Hint = "look at its owner and mode, the directories above it, and whether its file system is mounted noexec"
	case errors.Is(err, fs.ErrNotExist): // the file is there
		e.Code, e.Message = CodeMissingInterpreter, "its interpreter is missing"
		if i := interpreter(path); i != "" {
			e.Message = fmt.Sprintf("its interpreter %s is missing", i)
		}
		e.Hint = "install the interpreter, or correct the first line of the script"
	case errors.Is(err, syscall.ENOEXEC):
		e.Code, e.Message, e.Hint = CodeWrongFormat, "exec format error: "+format(path), "install the build for "+runtime.GOOS+"/"+runtime.GOARCH
		if strings.Contains(e.Message, "script") {
			e.Hint = "begin it with a line such as #!/bin/sh"
		}
	case errors.Is(err, syscall.ETXTBSY):
		e.Message, e.Hint = "it is being written to", "wait until the installation is done; replace executables by renaming"
	}
	return e
}

// interpreter that a script or a dynamically linked program asks for.
func interpreter(path string) string {
	if line, ok := strings.CutPrefix(firstLine(path), "#!"); ok {
		if fields := strings.Fields(line); len(fields) > 0 {
			return fields[0]
		}
	}
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err == nil {
				return strings.TrimRight(string(b), "\x00")
			}
		}
	}
	return ""
}

// format names what kind of file it is.
func format(path string) string {
	if f, err := elf.Open(path); err == nil {
		defer func() { _ = f.Close() }()
		return "it is an ELF program for " + strings.ToLower(strings.TrimPrefix(f.Machine.String(), "EM_"))
	}
	if f, err := macho.Open(path); err == nil {
		defer func() { _ = f.Close() }()
		return "it is a macOS program for " + strings.ToLower(strings.TrimPrefix(f.Cpu.String(), "Cpu"))
	}
	if firstLine(path) == "" {
		return "it is an empty file, or one in a format that this system does not know"
	}
	return "it is a script without a #! line, or in a format that this system does not know"
}

func firstLine(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, 256)
	n, _ := f.Read(b)
	line, _, _ := strings.Cut(string(b[:n]), "\n")
	return strings.TrimSpace(line)
}
