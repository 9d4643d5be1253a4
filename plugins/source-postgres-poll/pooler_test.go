package main

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/require"
)

// pooler gives clients sessions of a PostgreSQL as PgBouncer does: in session mode one each, in transaction mode another
// one for each transaction, the last used first.
type pooler struct {
	t           testing.TB
	dsn         string
	transaction bool
	lis         net.Listener

	mu   sync.Mutex
	idle []*pgconn.PgConn
	all  []*pgconn.PgConn
	open []net.Conn
	wg   sync.WaitGroup

	sending sync.Mutex // a server's frontend goes from client to client
}

func startPooler(t testing.TB, dsn string, transaction bool) *pooler {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &pooler{t: t, dsn: dsn, transaction: transaction, lis: lis}
	p.wg.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			p.open = append(p.open, c)
			p.mu.Unlock()
			p.wg.Go(func() { p.client(c) })
		}
	})
	t.Cleanup(func() {
		_ = lis.Close()
		p.mu.Lock()
		for _, c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
		for _, c := range p.all {
			_ = c.Close(context.Background())
		}
	})
	return p
}

func (p *pooler) addr() string { return p.lis.Addr().String() }

func (p *pooler) acquire() (*pgconn.PgConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.idle); n > 0 {
		c := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return c, nil
	}
	c, err := pgconn.Connect(context.Background(), p.dsn)
	if err == nil {
		p.all = append(p.all, c)
	}
	return c, err
}

func (p *pooler) release(c *pgconn.PgConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = append(p.idle, c)
}

// client serves one client until it goes.
func (p *pooler) client(c net.Conn) {
	defer c.Close()
	b := pgproto3.NewBackend(c, c)
	for started := false; !started; {
		m, err := b.ReceiveStartupMessage()
		if err != nil {
			return
		}
		switch m := m.(type) {
		case *pgproto3.StartupMessage:
			for name := range m.Parameters {
				// As PgBouncer does without ignore_startup_parameters.
				if !strings.Contains(" user database application_name client_encoding ", " "+name+" ") {
					b.Send(&pgproto3.ErrorResponse{Severity: "FATAL", Code: "08P01", Message: "unsupported startup parameter: " + name})
					_ = b.Flush()
					return
				}
			}
			started = true
		case *pgproto3.CancelRequest:
			return
		default:
			_, _ = c.Write([]byte("N"))
		}
	}
	b.Send(&pgproto3.AuthenticationOk{})
	b.Send(&pgproto3.ParameterStatus{Name: "server_version", Value: "15.0"})
	b.Send(&pgproto3.ParameterStatus{Name: "standard_conforming_strings", Value: "on"})
	b.Send(&pgproto3.ParameterStatus{Name: "client_encoding", Value: "UTF8"})
	b.Send(&pgproto3.BackendKeyData{ProcessID: 4711, SecretKey: []byte{1, 2, 3, 4}})
	b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
	if b.Flush() != nil {
		return
	}
	var server *pgconn.PgConn
	var back sync.WaitGroup // what the server answers is passed on beside
	free := make(chan struct{}, 1)
	for {
		m, err := b.Receive()
		if _, bye := m.(*pgproto3.Terminate); err != nil || bye {
			if server != nil && !p.transaction {
				_ = server.Conn().Close() // and with it what it holds
				back.Wait()
			}
			return
		}
		select {
		case <-free:
			back.Wait() // it is still passing on the last answer
			server = nil
		default:
		}
		if server == nil {
			if server, err = p.acquire(); err != nil {
				p.t.Error(err)
				return
			}
			s := server
			back.Go(func() { p.answers(b, s, free) })
		}
		p.sending.Lock()
		server.Frontend().Send(m)
		err = server.Frontend().Flush()
		p.sending.Unlock()
		if err != nil {
			return
		}
	}
}

// answers passes on what a server says until its transaction is over.
func (p *pooler) answers(b *pgproto3.Backend, s *pgconn.PgConn, free chan struct{}) {
	for {
		m, err := s.Frontend().Receive()
		if err != nil {
			return
		}
		b.Send(m)
		ready, ok := m.(*pgproto3.ReadyForQuery)
		over := ok && ready.TxStatus == 'I' && p.transaction
		if over {
			p.release(s)
			free <- struct{}{}
		}
		if b.Flush() != nil || over {
			return
		}
	}
}

func poolerDSN(d *db, p *pooler) string {
	cc, err := pgconn.ParseConfig(d.dsn)
	require.NoError(d.t, err)
	return "postgres://" + cc.User + "@" + p.addr() + "/" + cc.Database + "?sslmode=disable"
}

// P18: behind a transaction pooler an advisory lock is nobody's. An idle pooler gives the same process each time, so
// that comparing pids alone would not notice.
func TestTransactionPoolerIsRefused(t *testing.T) {
	t.Parallel()
	d := newDB(t, seqDDL)
	p := startPooler(t, d.dsn, true)
	r := startRelay(t, poolerDSN(d, p), relayOptions{})
	f := r.awaitFault()
	require.Equal(t, "pooler_transaction_mode", f.GetCode())
	require.Contains(t, f.GetHint(), "session mode")
	require.Zero(t, d.int(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`))
	p.nothingSet()
}

// nothingSet checks that the pool's sessions, which serve others, are as they were.
func (p *pooler) nothingSet() {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Len(p.t, p.all, 2)
	for _, server := range p.all {
		rows, err := server.Exec(context.Background(), `SHOW default_transaction_read_only; SHOW enable_seqscan`).ReadAll()
		require.NoError(p.t, err)
		require.Equal(p.t, "off", string(rows[0].Rows[0][0]))
		require.Equal(p.t, "on", string(rows[1].Rows[0][0]))
	}
}

// P20: a pool in session mode is as good as the server, with either exec_mode.
func TestSessionPoolerWorks(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{execUnnamed, execPrepared} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			d := newDB(t, seqDDL)
			p := startPooler(t, d.dsn, false)
			r := startRelay(t, poolerDSN(d, p), relayOptions{config: map[string]any{"exec_mode": mode}})
			d.exec(`INSERT INTO outbox (aggregate_id, type, payload) SELECT i % 7, 't', jsonb_build_object('n', i) FROM generate_series(1, 3000) i`)
			inOrder(t, r.awaitGot(3000))
			r.drain()
			require.Zero(t, d.int(`SELECT count(*) FROM outbox`))
		})
	}
}
