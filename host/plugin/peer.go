package plugin

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// peerCredentials is gRPC's plain transport, after asking the kernel who listens at the other end: it must be a process
// in the plugin's group. The process that was started is not enough, since it can be a wrapper script or the launcher of
// a virtual environment.
type peerCredentials struct {
	credentials.TransportCredentials
	group func() int

	mu      *sync.Mutex
	refused *error // gRPC keeps only the text
}

func newPeerCredentials(group func() int) *peerCredentials {
	return &peerCredentials{
		TransportCredentials: insecure.NewCredentials(), group: group, mu: new(sync.Mutex), refused: new(error),
	}
}

// ClientHandshake checks the peer of a new connection.
func (c *peerCredentials) ClientHandshake(
	ctx context.Context, authority string, conn net.Conn,
) (net.Conn, credentials.AuthInfo, error) {
	if err := checkPeer(conn, c.group()); err != nil {
		c.mu.Lock()
		*c.refused = err
		c.mu.Unlock()
		return nil, nil, err
	}
	return c.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

// Clone is called by gRPC for each connection that it sets up.
func (c *peerCredentials) Clone() credentials.TransportCredentials {
	clone := *c
	clone.TransportCredentials = c.TransportCredentials.Clone()
	return &clone
}

// refusal is the last peer that was refused.
func (c *peerCredentials) refusal() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.refused
}

func checkPeer(conn net.Conn, group int) error {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("BUG: no peer of a %T", conn)
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return fmt.Errorf("ask for the peer: %w", err)
	}
	var pid int
	var perr error
	if err := raw.Control(func(fd uintptr) { pid, perr = peerPID(int(fd)) }); err != nil {
		return fmt.Errorf("ask for the peer: %w", err)
	}
	if perr != nil {
		return fmt.Errorf("ask for the peer: %w", perr)
	}
	got, err := unix.Getpgid(pid)
	if err != nil {
		return fmt.Errorf("ask for the process group of the peer, pid %d: %w", pid, err)
	}
	if got != group {
		return fmt.Errorf("the socket belongs to pid %d in process group %d, not to the plugin's group %d", pid, got, group)
	}
	return nil
}
