package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// Ways to begin without a position.
const (
	backlogPublish = "publish"
	backlogSkip    = "skip"
)

// keptLockWait is how long another relay's session may still be there: that of a host which has vanished ends after 8 s.
const keptLockWait = 15 * time.Second

// keptStream is what an attempt needs of *sdk.SourceStream.
type keptStream interface {
	stream
	Progress(position []byte) error
}

// kept is one attempt at a table whose rows stay. Nothing is written to the database; the position is all that tells what
// is published, so it must never cover an event that was not.
//
// Numbers and commits do not come in one order, so a number is no position. A snapshot is: it says of each transaction
// whether it had ended. What had ended at a new snapshot and not at the last one is a pair; pairs cut the commits into
// parts that meet and do not overlap, so every event is in exactly one, and a long transaction delays only itself. The
// database's own view of a row would not do instead: xmin of a row that was inserted behind a savepoint is another
// transaction's than the one that a snapshot lists.
type kept struct {
	source
	st       keptStream
	flight   *keptFlight
	server   keptServer
	lockWait time.Duration
}

// keptServer is what a position can be understood with.
type keptServer struct {
	base      position // its system, timeline, database and table
	moment             // when the session began
	started   time.Time
	recovered uint64 // up to where WAL was replayed before the server became what it is; 0: not known
}

// runKept is one attempt; see run.
func runKept(ctx context.Context, o sdk.SourceOpen[config], s keptStream) error {
	k := &kept{
		source: source{c: o.Config, o: o, s: s, log: slog.With("table", o.Config.Table)},
		st:     s, flight: newKeptFlight(o.Window), lockWait: keptLockWait,
	}
	var err error
	if k.name, err = outbox.ParseName(k.c.Table); err != nil {
		return sdk.Config(err).WithCode("table_invalid")
	}
	if k.m, err = outbox.Map(k.c.Preset, k.c.Columns); err != nil {
		return classify(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	soft, stop := context.WithCancelCause(ctx) // reading ends
	defer stop(nil)
	ended := make(chan struct{})
	requests := make(chan error, 1) // the end of the one goroutine that is started here
	go func() {
		err := k.requests(ended)
		if errors.Is(err, errStop) {
			stop(errStop)
		} else if err != nil {
			cancel(err)
		}
		requests <- err
	}()
	err = k.lead(ctx, soft)
	cancel(err)
	close(ended)
	if e := <-requests; e != nil && !errors.Is(e, errGone) && !errors.Is(e, errStop) {
		return e
	}
	switch {
	case errors.Is(err, errStop), errors.Is(context.Cause(ctx), errGone):
		return nil
	}
	return err
}

// requests obeys the host until it says stop (errStop), the stream ends (errGone), or the attempt does.
func (k *kept) requests(ended <-chan struct{}) error {
	for {
		select {
		case <-ended:
			return nil
		case r, open := <-k.st.Requests():
			if !open {
				return errGone
			}
			switch r := r.(type) {
			case sdk.Stop:
				return errStop // with nothing left to do: an ack has taken effect when it arrives
			case sdk.Ack:
				if err := k.flight.ack(r.ThroughSeq); err != nil {
					return err
				}
			case sdk.Window:
				k.flight.mu.Lock()
				k.flight.window = r
				k.flight.mu.Unlock()
			case sdk.Hold, sdk.Release:
				return errors.New("protocol: a key was held, which Opened did not offer")
			}
			wake(k.flight.wake)
		}
	}
}

// lead connects, becomes the only relay, and reads. It returns errStop once the host has said so.
func (k *kept) lead(ctx, soft context.Context) error {
	s, err := k.connect(soft, "source", readerSettings)
	if err != nil {
		return err
	}
	defer s.close()
	if err := k.probe(soft, s); err != nil {
		return softly(soft, err)
	}
	t, err := outbox.Inspect(soft, s.conn, k.name)
	if err != nil {
		return softly(soft, lost(err, "connection_lost"))
	}
	key := lockKey(t.OID, 0)
	if err := k.lockKept(soft, s, key); err != nil {
		return softly(soft, err)
	}
	l, err := k.layout(soft, s)
	if err == nil && l.Table.OID != t.OID {
		err = sdk.Transient(errors.New("the table was replaced while it was looked at")).WithCode("table_changed")
	}
	if err != nil {
		return softly(soft, lost(err, "connection_lost"))
	}
	if err := k.identify(soft, s, l.Table); err != nil {
		return softly(soft, lost(err, "connection_lost"))
	}
	from, err := k.begin()
	if err != nil {
		return err
	}
	if err := k.work(ctx, soft, s, l, from); err != nil {
		return err
	}
	if err := s.unlock(context.WithoutCancel(ctx), key); err != nil {
		return lost(err, "lock_lost")
	}
	return errStop
}

// probe looks for a transaction pooler, with a second session.
func (k *kept) probe(ctx context.Context, s *session) error {
	other, err := k.connect(ctx, "source", nil)
	if err != nil {
		return err
	}
	defer other.close()
	if err := probePooler(ctx, s, other); err != nil {
		return classify(err)
	}
	return nil
}

// lockKept takes the lock that relays of every kind take. It does not stand by for ever: another host has a position of
// its own, and what that one has published would all be published again by this one.
func (k *kept) lockKept(ctx context.Context, s *session, key int64) error {
	ctx, cancel := context.WithTimeoutCause(ctx, k.lockWait, errInUse)
	defer cancel()
	err := k.standBy(ctx, s, key)
	if !errors.Is(err, errInUse) {
		return err
	}
	who, e := lockHolder(context.WithoutCancel(ctx), s.conn, key)
	if e != nil {
		return lost(e, "connection_lost")
	}
	return sdk.Config(fmt.Errorf("%w: %s", errInUse, who)).WithCode("outbox_in_use").
		WithHint("with after_publish: keep one relay reads a table, because the position is in one host's state: stop the other one; it is tried again")
}

var errInUse = errors.New("another relay reads this outbox")

// lockHolder says who has an advisory lock.
func lockHolder(ctx context.Context, conn *pgx.Conn, key int64) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	var who string
	err := conn.QueryRow(ctx, `
		SELECT concat_ws(', ', nullif(a.application_name, ''), 'from ' || coalesce(host(a.client_addr), 'a local socket'), 'pid ' || l.pid)
		FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
		WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.classid = $1::int8::oid AND l.objid = $2::int8::oid
		  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())`,
		int64(uint64(key)>>32), int64(uint64(key)&math.MaxUint32)).Scan(&who)
	if errors.Is(err, pgx.ErrNoRows) {
		return "it has just ended", nil
	}
	if err != nil {
		return "", fmt.Errorf("look who reads the outbox: %w", err)
	}
	return who, nil
}

// identify asks what a position here belongs to. The name of a WAL file begins with the timeline; what pg_control says
// is one checkpoint behind after a promotion.
func (k *kept) identify(ctx context.Context, s *session, t *outbox.Table) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	v := &k.server
	var timeline, database, recovered int64
	err := s.conn.QueryRow(ctx, `
		SELECT (SELECT system_identifier FROM pg_control_system()), ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
		       (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = current_database()), pg_postmaster_start_time(),
		       coalesce(pg_last_wal_replay_lsn() - '0/0', 0)::bigint`).
		Scan(&v.base.system, &timeline, &database, &v.started, &recovered)
	if err != nil {
		return fmt.Errorf("identify the server: %w", err)
	}
	v.base.timeline, v.base.database, v.base.table = uint32(timeline), uint32(database), t.OID
	v.recovered = uint64(recovered)
	v.moment, err = s.look(ctx)
	return err
}

// begin is where to read on: where the stored position is, or as backlog says.
func (k *kept) begin() (position, error) {
	stored := k.o.Position
	if stored != nil {
		p, gap := k.server.judge(stored)
		if gap == nil {
			return p, nil
		}
		if k.c.AcceptGap != gap.Token() {
			return position{}, gap.Config()
		}
		k.log.Warn("a gap was accepted: the stored position is dropped", "reason", gap.Reason, "backlog", k.c.backlog(), "position", string(stored))
	}
	p := k.server.base
	if k.c.backlog() == backlogSkip {
		p.old, p.lsn, p.at = k.server.snap, k.server.lsn, k.server.now
		k.log.Warn("no position: beginning with what commits from now on; rows that are in the table are not published")
	} else {
		k.log.Warn("no position: every row in the table WILL be published")
	}
	return p, nil
}

func (c config) backlog() string {
	if c.Backlog == "" {
		return backlogPublish
	}
	return c.Backlog
}

// judge decides whether the reading can go on from a stored position. Where that is not sure it is a gap: transaction ids
// that the position counts as ended may be given to other transactions, whose events would be left out.
func (v *keptServer) judge(stored []byte) (position, *outbox.Gap) {
	gap := func(hint, format string, a ...any) (position, *outbox.Gap) {
		return position{}, &outbox.Gap{
			Position: stored, Server: fmt.Sprintf("%d %d %d %d", v.base.system, v.base.timeline, v.base.database, v.base.table),
			Reason: fmt.Sprintf(format, a...), Hint: hint,
		}
	}
	p, err := decodePosition(stored)
	switch {
	case err != nil:
		return gap("was the pipeline's source another one before?", "%s", err)
	case p.system != v.base.system:
		return gap("does dsn point at the right server?", "it is of the cluster %d, and this is %d", p.system, v.base.system)
	case p.database != v.base.database:
		return gap("does dsn point at the right database?", "it is of the database with oid %d, and this one has %d", p.database, v.base.database)
	case p.table != v.base.table:
		return gap("was the table dropped, or renamed and made anew?", "it is of the table with oid %d, and this one has %d", p.table, v.base.table)
	case p.newest().xmax > v.snap.xmax:
		return gap("was the server restored from a backup?", "it knows transactions up to %d, and this server has only reached %d", p.newest().xmax-1, v.snap.xmax-1)
	case p.lsn > v.lsn:
		return gap("was the server restored from a backup?", "it was taken when %d bytes of WAL were written, and this server has only written %d", p.lsn, v.lsn)
	case p.timeline == v.base.timeline:
		// The server may have crashed since. Everything that a position counts as ended had reached the disk before (see
		// keptReader.where), so no id of it is given twice.
		return p, nil
	case p.timeline+1 == v.base.timeline && v.started.Before(p.at) && v.recovered >= p.lsn:
		// One promotion, of a server that was running as a standby when the position was taken, and that had replayed all of
		// what the position knows before it became the primary.
		return p, nil
	}
	return gap("if the old primary had sent everything before the fail-over nothing is missing; otherwise events that are not there any more were published",
		"it is of timeline %d, and the server is on %d now: whether it had replayed everything that the position knows cannot be told", p.timeline, v.base.timeline)
}

// work reads until the host says stop.
func (k *kept) work(ctx, soft context.Context, s *session, l *outbox.Layout, from position) error {
	order := describeOrder(l)
	for _, p := range l.Ignored {
		k.log.Warn("a column is not used", "reason", p.Message, "hint", p.Hint)
	}
	k.log.Info("reading the outbox", "after_publish", outbox.AfterKeep, "order", order.name, "order_column", order.column, "hint", order.hint)
	if err := k.s.Opened(sdk.SourceOpened{HasPositions: true, Order: order.name}); err != nil {
		return err
	}
	r := newKeptReader(k, s, l, from)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { defer close(r.out); return r.run(gctx, soft) })
	g.Go(func() error { return r.send(gctx) })
	g.Go(func() error { return k.status(gctx, soft) })
	err := g.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return k.s.Status(k.flight.status(time.Now()))
}

// status reports until reading has stopped.
func (k *kept) status(ctx, soft context.Context) error {
	t := time.NewTicker(statusInterval)
	defer t.Stop()
	for {
		if err := k.s.Status(k.flight.status(time.Now())); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-soft.Done():
			return nil
		case <-t.C:
		}
	}
}

// status is how it goes. The oldest event that is not acked is in flight, as far as there is anything in flight.
func (f *keptFlight) status(now time.Time) sdk.SourceStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	g := &f.figures
	st := sdk.SourceStatus{State: sdk.StateStreaming, Text: g.text, OldestUnpublished: -1, LagBytes: -1, Backlog: -1}
	oldest := f.oldest()
	switch {
	case oldest != math.MaxInt64:
		st.OldestUnpublished = max(0, now.Add(time.Duration(g.clock)).Sub(time.UnixMicro(oldest)))
	case f.events == 0:
		st.OldestUnpublished = 0
	}
	if !g.more {
		st.Backlog = int64(g.listed + f.events)
	}
	st.Metrics = []sdk.Metric{
		{Name: "rows_read_total", Value: float64(g.rows)},
		{Name: "pairs_total", Value: float64(g.pairs)},
		{Name: "open_transactions", Value: float64(g.running)},
	}
	return st
}
