package plugin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
)

// healthService is go-plugin's name for the plugin as a whole.
const healthService = "plugin"

// checkHealth asks once, and looks at the answer. (go-plugin's Ping does neither that nor end.)
func (p *Process) checkHealth(ctx context.Context) error {
	r, err := grpc_health_v1.NewHealthClient(p.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: healthService})
	if err != nil {
		return fmt.Errorf("health check: %s", status.Convert(err).Message())
	}
	if r.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		return fmt.Errorf("health check: the plugin says %s", r.GetStatus())
	}
	p.alive.Store(time.Now().UnixNano())
	return nil
}

// watch returns when the process has ended. It ends one that no longer answers: a process can be stopped, or stuck, for
// ever, and its connection looks well.
func (p *Process) watch() {
	ticker := time.NewTicker(p.timing.healthEvery)
	defer ticker.Stop()
	misses := 0
	for {
		select {
		case <-p.run.ended:
			return
		case now := <-ticker.C:
			p.log.tick(now)
		}
		if !p.healthy.Load() {
			continue // Launch is at it
		}
		ctx, cancel := context.WithTimeout(context.Background(), p.timing.healthDeadline)
		err := p.checkHealth(ctx)
		cancel()
		if err == nil {
			misses = 0
			continue
		}
		if p.run.over() {
			continue // it has exited, or is being killed: that is no miss
		}
		if misses++; misses < p.timing.healthMisses {
			continue
		}
		p.hung = fmt.Errorf("hung: killed after %d missed health checks: %w", misses, err)
		p.run.kill()
		<-p.run.ended
		return
	}
}
