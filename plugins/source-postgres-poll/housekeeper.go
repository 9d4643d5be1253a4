package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// housekeepEvery is the time from one round of housekeeping to the next, give or take a quarter.
const housekeepEvery = time.Minute

// housekeeper takes away what was published long ago, and makes partitions ahead. It has a session of its own for each
// round, and whoever holds its lock keeps house: one of all relays on the table. Nothing of where it stands is kept
// anywhere but in the catalog, so a round begins where the last one was killed.
//
//	reap.go        marked rows, one by one
//	partitions.go  old partitions: sealed, detached, dropped
//	partitions_ahead.go  new ones; partitions_plan.go is the calendar
//	keptretention.go     which rows are published where nothing marks them
type housekeeper struct {
	c        config
	l        *outbox.Layout
	pipeline string
	log      *slog.Logger
	figures  *chores
	// published is, with after_publish keep, the snapshot that the host has on its disk: see keptretention.go.
	published func() (txSnapshot, error)
}

func newHousekeeper(c config, l *outbox.Layout, pipeline string, log *slog.Logger) *housekeeper {
	return &housekeeper{c: c, l: l, pipeline: pipeline, log: log, figures: &chores{partitions: c.Retention.Every != ""}}
}

// keepHouse has the figures of housekeeping in the status.
func (e *engine) keepHouse(f *chores) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.chores = f
}

// housekeeperSettings are those of its session.
var housekeeperSettings = [][2]string{
	{"idle_session_timeout", "0"},
	// What a crash of the server undoes is done again.
	{"synchronous_commit", "off"},
	// Nobody is to wait behind one of its locks for long.
	{"lock_timeout", "1s"},
}

// housekeeperKey is the key of the lock. It is never to change (see lockKey).
func housekeeperKey(table uint32) int64 {
	sum := sha256.Sum256(fmt.Appendf(nil, "relevo/1/%d/housekeeper", table))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// run keeps house until the host says stop. What goes wrong is told, and tried again: no event waits for it.
func (h *housekeeper) run(ctx context.Context, stopping <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case <-stopping:
		case <-ctx.Done():
		}
		cancel()
	}()
	defer func() {
		cancel()
		<-stopped
	}()
	for {
		err := h.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		h.figures.told(err)
		if err != nil {
			c := classify(err)
			h.log.Warn("housekeeping did not get through, trying again", "err", err, "code", c.Code, "hint", c.Hint)
		}
		if pause(ctx, housekeepEvery*3/4+rand.N(housekeepEvery/2)) != nil {
			return nil
		}
	}
}

// round does all that there is to do.
func (h *housekeeper) round(ctx context.Context) error {
	s, err := connect(ctx, h.c, h.pipeline, "housekeeper", housekeeperSettings)
	if err != nil {
		return fmt.Errorf("connect for housekeeping: %w", err)
	}
	defer s.close()
	key := housekeeperKey(h.l.Table.OID)
	ok, err := s.tryLock(ctx, key)
	if err != nil {
		return fmt.Errorf("lock for housekeeping: %w", err)
	}
	if !ok {
		return nil // another relay keeps house
	}
	if h.c.Retention.Every != "" {
		err = h.partitions(ctx, s)
	} else {
		err = h.reap(ctx, s)
	}
	if !s.conn.IsClosed() {
		err = errors.Join(err, s.unlock(ctx, key))
	}
	return err
}

// chores are the figures of housekeeping.
type chores struct {
	mu         sync.Mutex
	partitions bool // it is about partitions

	trouble string
	reaped  uint64
	created uint64
	dropped uint64
	ahead   float64   // whole periods beyond the present one that there is room for
	oldest  time.Time // the end of the oldest partition; zero: none has ended
}

func (f *chores) told(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trouble = ""
	if err != nil {
		f.trouble = "housekeeping: " + strings.ReplaceAll(err.Error(), "\n", "; ")
	}
}

func (f *chores) count(n *uint64, by int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n += uint64(by)
}

// counted takes the figures of the partitions that there are.
func (f *chores) counted(ps *outbox.Partitions, every period) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ahead, f.oldest = 0, time.Time{}
	if len(ps.List) > 0 && !ps.List[0].Upper.After(ps.Now) {
		f.oldest = ps.List[0].Upper
	}
	present, until := every.start(ps.Now), coverage(ps.List, ps.Now)
	for f.ahead < maxAhead && !every.add(present, int(f.ahead)+2).After(until) {
		f.ahead++
	}
}

// add writes the figures into a status.
func (f *chores) add(st *sdk.SourceStatus, now time.Time) {
	if f == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if st.Text == "" {
		st.Text = f.trouble
	}
	if !f.partitions {
		st.Metrics = append(st.Metrics, sdk.Metric{Name: "rows_reaped_total", Value: float64(f.reaped)})
		return
	}
	var age float64
	if !f.oldest.IsZero() {
		age = max(0, now.Sub(f.oldest).Seconds())
	}
	st.Metrics = append(st.Metrics,
		sdk.Metric{Name: "partitions_created_total", Value: float64(f.created)},
		sdk.Metric{Name: "partitions_dropped_total", Value: float64(f.dropped)},
		sdk.Metric{Name: "partitions_ahead", Value: f.ahead},
		sdk.Metric{Name: "oldest_partition_seconds", Value: age},
	)
}
