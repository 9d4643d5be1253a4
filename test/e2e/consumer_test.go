package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// consumer reads the stream as it grows, from its first message on. It has nothing of ours in it.
type consumer struct {
	s    *system
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	got    []delivery
	times  map[string]int // deliveries by event id
	faults []string
	next   uint64 // of the stream
}

// delivery is one message of the stream.
type delivery struct {
	id  string
	key int64 // 0: none
	n   int64 // place in its key, from 1; 0: none
	at  time.Time
}

// consume starts a consumer.
func (s *system) consume() *consumer {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	c := &consumer{s: s, stop: stop, times: map[string]int{}, next: 1}
	c.wg.Go(func() {
		for ctx.Err() == nil {
			c.read(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond): // the server is away
			}
		}
	})
	s.t.Cleanup(func() {
		c.stop()
		c.wg.Wait()
	})
	return c
}

// read reads on until something goes wrong.
func (c *consumer) read(ctx context.Context) {
	c.mu.Lock()
	next := c.next
	c.mu.Unlock()
	once, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cons, err := c.s.js.OrderedConsumer(once, stream, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: next,
	})
	if err != nil {
		return
	}
	messages, err := cons.Messages()
	if err != nil {
		return
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return
		}
		if !c.take(m) {
			return
		}
	}
}

func (c *consumer) take(m jetstream.Msg) bool {
	d, err := deliveryOf(m.Headers().Get("id"), m.Data())
	meta, merr := m.Metadata()
	err = errors.Join(err, merr)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.faults = append(c.faults, err.Error())
		return true
	case meta.Sequence.Stream < c.next:
		return true // seen before a reconnect
	case meta.Sequence.Stream > c.next:
		return false // a hole: read it again
	}
	c.next++
	c.got = append(c.got, d)
	c.times[d.id]++
	return true
}

// deliveryOf reads what emit has written.
func deliveryOf(id string, payload []byte) (delivery, error) {
	var body struct {
		Key *int64
		N   *int64
	}
	err := json.Unmarshal(payload, &body)
	d := delivery{id: id, at: time.Now()}
	if body.Key != nil {
		d.key = *body.Key
	}
	if body.N != nil {
		d.n = *body.N
	}
	return d, err
}

// count is how many messages, and how many different events, there have been.
func (c *consumer) count() (messages, events int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.got), len(c.times)
}

// deliveries of one event.
func (c *consumer) deliveries(id string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.times[id]
}

// awaitMore waits for n more different events.
func (c *consumer) awaitMore(n int) {
	c.s.t.Helper()
	_, events := c.count()
	target := events + n
	eventually(c.s.t, fmt.Sprintf("%d more events are delivered", n), patience, func() bool {
		_, events := c.count()
		return events >= target
	})
}

// forgotten waits until the stream has forgotten the ids of all that it holds. A host is back within that time, and what
// it repeats would be dropped.
func (c *consumer) forgotten() {
	c.s.t.Helper()
	c.catchUp()
	eventually(c.s.t, "the ids are forgotten", patience, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.got) == 0 || time.Since(c.got[len(c.got)-1].at) > 5*forgetful
	})
}

// catchUp waits until everything that the stream holds has been read.
func (c *consumer) catchUp() {
	c.s.t.Helper()
	eventually(c.s.t, "the consumer has caught up", patience, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		info, err := c.s.js.Stream(ctx, stream)
		if err != nil {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.next == info.CachedInfo().State.LastSeq+1
	})
}

// figures of a run.
type figures struct{ committed, delivered, repeats int }

// verdict waits until the outbox is empty and compares what was committed with what came: 0 lost, 0 invented, the first
// deliveries of each key in order.
func (c *consumer) verdict() figures {
	c.s.t.Helper()
	c.s.awaitEmpty()
	return c.judge()
}

// judge is verdict without the wait. discarded events need not have come.
func (c *consumer) judge(discarded ...string) figures {
	c.s.t.Helper()
	c.catchUp()
	c.mu.Lock()
	defer c.mu.Unlock()
	require.Empty(c.s.t, c.faults)
	return c.s.judge(c.got, discarded...)
}

// judge compares what came, in its order, with what was committed.
func (s *system) judge(got []delivery, discarded ...string) figures {
	s.t.Helper()
	committed := map[string]delivery{}
	s.query(func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, "select event::text, coalesce(key, 0), coalesce(n, 0) from journal")
		if err != nil {
			return err
		}
		var d delivery
		_, err = pgx.ForEachRow(rows, []any{&d.id, &d.key, &d.n}, func() error {
			committed[d.id] = d
			return nil
		})
		return err
	})
	events := map[string]bool{}
	for _, d := range got {
		events[d.id] = true
	}
	f := figures{committed: len(committed), delivered: len(events), repeats: len(got) - len(events)}
	s.t.Logf("committed %d, delivered %d, repeats %d", f.committed, f.delivered, f.repeats)
	w := compare(committed, got, discarded...)
	require.Empty(s.t, first(w.lost), "%d lost", len(w.lost))
	require.Empty(s.t, first(w.invented), "%d invented", len(w.invented))
	require.Empty(s.t, first(w.disorder), "%d out of order", len(w.disorder))
	return f
}

// wrongs are what may never be.
type wrongs struct {
	lost, invented []delivery
	disorder       []string
}

// compare holds what came, in its order, against what was committed.
func compare(committed map[string]delivery, got []delivery, discarded ...string) (w wrongs) {
	seen := map[string]bool{}
	last := map[int64]delivery{}
	for _, d := range got {
		if seen[d.id] {
			continue
		}
		seen[d.id] = true
		if want, ok := committed[d.id]; !ok || want.key != d.key || want.n != d.n {
			w.invented = append(w.invented, d)
			continue
		}
		if d.key == 0 {
			continue
		}
		if d.n <= last[d.key].n {
			w.disorder = append(w.disorder, fmt.Sprintf("key %d: %d (%s) after %d (%s)", d.key, d.n, d.id, last[d.key].n, last[d.key].id))
		}
		last[d.key] = d
	}
	for id, d := range committed {
		if !seen[id] && !slices.Contains(discarded, id) {
			w.lost = append(w.lost, d)
		}
	}
	return w
}

// first few of a list, so that a failure can be read.
func first[T any](list []T) []T { return list[:min(len(list), 10)] }
