package e2e

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A graceful restart under load repeats nothing.
func TestGracefulRestart(t *testing.T) {
	t.Parallel()
	for name, publish := range map[string]string{"batch": "batch", "key serial": "key_serial"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			takePlace(t)
			s := newSystem(t, parts{})
			s.sink()["config"].(conf)["publish"] = publish
			c, l := s.consume(), s.load(loadConfig{})
			for i := range 4 {
				h := s.start(launch{})
				c.awaitMore(500)
				if i == 3 {
					l.stop()
					s.awaitEmpty()
				}
				h.signal([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT}[i%2])
				require.Zero(t, h.wait(patience), "exit code")
			}
			require.Zero(t, c.verdict().repeats)
		})
	}
}
