package netproxy

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
)

// Ports for servers that tests stop and start again. They lie below the range from which Linux (32768 and up) and
// macOS (49152 and up) take the ports of outgoing connections. A port out of that range would be lost now and then
// while its server is down: to any outgoing connection, or to the very client that keeps dialling it, since a dial
// from a port to the same port connects to itself.
const (
	firstPort = 15000
	lastPort  = 32000
	portTries = 200
)

// Listen listens on a loopback port that stays free to be listened on again after it was closed.
func Listen() (net.Listener, error) {
	var errs []error
	for range portTries {
		port := firstPort + rand.IntN(lastPort-firstPort)
		l, err := net.Listen("tcp4", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("find a free port: %w", errors.Join(errs...))
}

// Port returns a loopback port that nobody listens on now. Another process may be quicker to take it: a caller that
// hands it to a server is ready to ask for the next one.
func Port() (int, error) {
	l, err := Listen()
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}
