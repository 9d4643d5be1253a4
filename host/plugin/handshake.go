package plugin

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// The handshake of docs/plugin-protocol.md.
const (
	cookieKey       = "RELEVO_PLUGIN"
	cookieValue     = "d5a3"
	protocolVersion = 1
	coreVersion     = 1 // of go-plugin's line
)

// handshake is the line that a plugin prints when it can be connected to:
// core version|protocol version|network|address|protocol, and whatever go-plugin adds behind.
type handshake struct {
	core, version              int
	network, address, protocol string
}

// parseHandshake tells the handshake line from junk.
func parseHandshake(line string) (handshake, bool) {
	parts := strings.Split(strings.TrimSpace(line), "|")
	if len(parts) < 4 {
		return handshake{}, false
	}
	core, err1 := strconv.ParseUint(parts[0], 10, 16)
	version, err2 := strconv.ParseUint(parts[1], 10, 16)
	if err1 != nil || err2 != nil || parts[2] == "" || parts[3] == "" {
		return handshake{}, false
	}
	h := handshake{core: int(core), version: int(version), network: parts[2], address: parts[3], protocol: "netrpc"}
	if len(parts) > 4 {
		h.protocol = parts[4]
	}
	return h, true
}

// check looks at everything that go-plugin would complain about in words that help nobody, and at the socket, which it
// does not look at. dir is the directory that the plugin was given.
func (h handshake) check(dir string) error {
	switch {
	case h.core != coreVersion:
		return &LaunchError{
			Code:    CodeProtocolVersion,
			Message: fmt.Sprintf("its handshake has core version %d, not %d", h.core, coreVersion),
			Hint:    "build it with a go-plugin that writes handshake lines of version 1",
		}
	case h.version != protocolVersion:
		return &LaunchError{
			Code:    CodeProtocolVersion,
			Message: fmt.Sprintf("it speaks version %d of the plugin protocol, and this relevo speaks version %d", h.version, protocolVersion),
			Hint:    "install the build of the plugin that goes with this version of relevo",
		}
	case h.protocol != "grpc":
		return &LaunchError{
			Code:    CodeNotGRPC,
			Message: fmt.Sprintf("it serves %q, not gRPC", h.protocol),
			Hint:    "a relevo plugin serves gRPC: its author must set GRPCServer, or the fifth field of the handshake line",
		}
	case h.network != "unix":
		return &LaunchError{
			Code:    CodeSocket,
			Message: fmt.Sprintf("it listens on %s %s, where anybody on this machine could speak to it", h.network, h.address),
			Hint:    "a relevo plugin listens on a unix socket in $PLUGIN_UNIX_SOCKET_DIR",
		}
	case len(h.address) > maxSocketPath:
		return &LaunchError{
			Code:    CodeSocket,
			Message: fmt.Sprintf("its socket path has %d bytes, and the system allows %d: %s", len(h.address), maxSocketPath, h.address),
			Hint:    "a relevo plugin makes a short name in $PLUGIN_UNIX_SOCKET_DIR",
		}
	case !within(dir, h.address):
		return &LaunchError{
			Code:    CodeSocket,
			Message: fmt.Sprintf("it listens on %s, outside the private directory that it was given", h.address),
			Hint:    "a relevo plugin listens on a unix socket in $PLUGIN_UNIX_SOCKET_DIR",
		}
	}
	return nil
}

// within reports whether path is below dir, by name and also once links are followed.
func within(dir, path string) bool {
	if strings.HasPrefix(filepath.Clean(path), dir+string(filepath.Separator)) {
		return true
	}
	realDir, err1 := filepath.EvalSymlinks(dir)
	realPath, err2 := filepath.EvalSymlinks(filepath.Dir(path))
	return err1 == nil && err2 == nil &&
		(realPath == realDir || strings.HasPrefix(realPath, realDir+string(filepath.Separator)))
}

// onceReader is a reader whose text arrives later, once: Read blocks until settle.
type onceReader struct {
	once  sync.Once
	ready chan struct{}
	text  *strings.Reader
}

func newOnceReader() *onceReader { return &onceReader{ready: make(chan struct{})} }

// settle sets the text; the first call counts.
func (o *onceReader) settle(text string) {
	o.once.Do(func() {
		o.text = strings.NewReader(text)
		close(o.ready)
	})
}

func (o *onceReader) settled() bool {
	select {
	case <-o.ready:
		return true
	default:
		return false
	}
}

func (o *onceReader) Read(b []byte) (int, error) {
	<-o.ready
	return o.text.Read(b)
}
