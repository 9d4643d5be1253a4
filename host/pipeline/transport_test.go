package pipeline

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cpu is the processor time of a process so far, from the kernel.
func cpu(t testing.TB, pid int) time.Duration {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	require.NoError(t, err)
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+2:]))
	u, _ := strconv.Atoi(f[11])
	s, _ := strconv.Atoi(f[12])
	return time.Duration(u+s) * 10 * time.Millisecond
}

func ownCPU(t testing.TB) time.Duration {
	var r syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// ballast is what relevo run has, see host/cli.
var ballast []byte

// BenchmarkTransport is the cost of 500-byte events through source SDK, host and sink SDK with null plugins: processor
// time of all three processes, per event. Goal: 2 µs with batches of 500.
func BenchmarkTransport(b *testing.B) {
	ballast = make([]byte, 32<<20)
	for _, c := range []struct {
		name string
		sink conf
	}{
		{"keeps_order", conf{"keeps_order": true, "record": ""}},
		{"key_serial", conf{"record": ""}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b, conf{"size": 500, "keys": 1000000, "batch": 500, "positions": true}, c.sink)
			r.conf.Delivery.MaxInFlightEvents = 10000
			r.start()
			n := func() uint64 { return r.p.Status().Sinks[0].Settled }
			r.until("warm", func(s Status) bool { return s.Sinks[0].Settled > 500000 })
			s := r.p.Status()
			b.ResetTimer()
			from, src, snk, own, start := n(), cpu(b, s.Source.PID), cpu(b, s.Sinks[0].PID), ownCPU(b), time.Now()
			target := from + uint64(max(b.N, 1000000))
			r.until("measured", func(s Status) bool { return s.Sinks[0].Settled >= target })
			events := float64(n() - from)
			took := time.Since(start)
			per := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / events }
			dSrc, dSnk, dOwn := cpu(b, s.Source.PID)-src, cpu(b, s.Sinks[0].PID)-snk, ownCPU(b)-own
			b.ReportMetric(per(dSrc), "source-µs/event")
			b.ReportMetric(per(dOwn), "host-µs/event")
			b.ReportMetric(per(dSnk), "sink-µs/event")
			b.ReportMetric(per(dSrc+dOwn+dSnk), "cpu-µs/event")
			b.ReportMetric(events/took.Seconds(), "events/s")
			b.ReportMetric(0, "ns/op")
			r.abort()
		})
	}
}
