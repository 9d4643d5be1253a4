package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// maxDropped is how many bytes of rows that nobody wants are read off the connection before the server is asked to stop.
const maxDropped = 16 << 20

// idleStatus is what ReadyForQuery says outside of a transaction.
const idleStatus = 'I'

// portal is one read over the extended protocol, message by message: pgx fetches whole results, and a part of one needs
// Execute with a row limit.
//
// It is in a transaction of its own, and each step ends with a Sync. Without them the steps would be one implicit
// transaction, which costs nothing, and in which no time-out of the server counts while it waits for the next step: a
// leader that freezes between two of them would keep the lock for ever. So it is idle_in_transaction_session_timeout.
// Where one step fetches all there can be, there is nothing to wait for: it is an implicit transaction, and one round
// trip.
type portal struct {
	s        *session
	pc       *pgconn.PgConn
	single   bool // one step
	dropping bool // row has returned false
	dropped  int  // bytes
	canceled bool // the server was asked to stop
}

func (p *portal) fe() *pgproto3.Frontend { return p.pc.Frontend() }

// bind parses a statement, unless it is prepared already, and binds it to the unnamed portal.
func (p *portal) bind(q statement) {
	name := ""
	parse := true
	if p.s.prepared != nil {
		if name = p.s.prepared[q.sql]; name != "" {
			parse = false
		} else {
			name = fmt.Sprintf("relevo_%d", len(p.s.prepared)+1)
			p.s.prepared[q.sql] = name
		}
	}
	if parse {
		p.fe().SendParse(&pgproto3.Parse{Name: name, Query: q.sql})
	}
	p.fe().SendBind(&pgproto3.Bind{PreparedStatement: name, Parameters: q.params, ResultFormatCodes: q.formats})
}

// begin opens the transaction, with what is sent next.
func (p *portal) begin() {
	if !p.single {
		p.command("BEGIN")
	}
}

// command is a statement without parameters and rows.
func (p *portal) command(sql string) {
	p.fe().SendParse(&pgproto3.Parse{Query: sql})
	p.fe().SendBind(&pgproto3.Bind{})
	p.fe().SendExecute(&pgproto3.Execute{})
}

// execute asks for n rows. The portal outlives the Sync, since the transaction does. pgproto3 reports what is wrong with
// the connection at the next receive.
func (p *portal) execute(n int) {
	if p.single {
		n = 0 // all: with a limit that is reached, a portal counts as suspended
	}
	p.fe().SendExecute(&pgproto3.Execute{MaxRows: uint32(n)})
	p.fe().SendSync(&pgproto3.Sync{})
	_ = p.fe().Flush()
}

func (p *portal) receive() (pgproto3.BackendMessage, error) {
	// No context: session.guard has set the deadline, and a watcher for each row would cost more than the row.
	m, err := p.pc.ReceiveMessage(context.Background())
	if err != nil {
		return nil, err
	}
	if e, ok := m.(*pgproto3.ErrorResponse); ok {
		return nil, pgconn.ErrorResponseToPgError(e)
	}
	return m, nil
}

// first reads the answer to begin, and a result of one row.
func (p *portal) first(row func(values [][]byte) error) error {
	commands := 2
	if p.single {
		commands = 1
	}
	for commands > 0 {
		m, err := p.receive()
		if err != nil {
			return err
		}
		switch m := m.(type) {
		case *pgproto3.DataRow:
			if err := row(m.Values); err != nil {
				return err
			}
		case *pgproto3.CommandComplete:
			commands--
		}
	}
	return nil
}

// rows reads one step. more says that the portal may have more rows.
func (p *portal) rows(row func(values [][]byte) bool) (more bool, err error) {
	for {
		m, err := p.receive()
		if p.canceled && isCode(err, codeCanceled) {
			return false, p.ready() // as we asked; fail has nothing to tell
		}
		if err != nil {
			return false, err
		}
		switch m := m.(type) {
		case *pgproto3.DataRow:
			if !p.dropping && !row(m.Values) {
				p.dropping = true
			}
			if p.dropping {
				if err := p.drop(m.Values); err != nil {
					return false, err
				}
			}
		case *pgproto3.PortalSuspended:
			return true, p.ready()
		case *pgproto3.CommandComplete, *pgproto3.EmptyQueryResponse:
			return false, p.ready()
		case *pgproto3.ReadyForQuery:
			return false, errBadAnswer
		}
	}
}

// drop counts what is read for nothing. A step is planned by the size of earlier rows; where these suddenly are large,
// the server is stopped rather than let it send gigabytes.
func (p *portal) drop(values [][]byte) error {
	for _, v := range values {
		p.dropped += len(v)
	}
	if p.dropped < maxDropped || p.canceled {
		return nil
	}
	p.canceled = true
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if err := p.pc.CancelRequest(ctx); err != nil {
		return fmt.Errorf("stop a read: %w", err)
	}
	return nil
}

// ready reads up to the answer to a Sync, past what the server reports before it.
func (p *portal) ready() error {
	var reported error
	for {
		m, err := p.receive()
		if _, ok := errors.AsType[*pgconn.PgError](err); ok && !p.pc.IsClosed() {
			if !p.canceled || !isCode(err, codeCanceled) { // one that we asked for may come after the last row
				reported = err
			}
			continue
		}
		if err != nil {
			return err
		}
		if _, ok := m.(*pgproto3.ReadyForQuery); ok {
			return reported
		}
	}
}

// end closes the portal and its transaction. Of one that has failed, COMMIT is a ROLLBACK.
func (p *portal) end() error {
	if p.pc.TxStatus() == idleStatus {
		return nil // it was implicit
	}
	for range 2 { // a cancellation may stop the first one
		p.command("COMMIT")
		p.fe().SendSync(&pgproto3.Sync{})
		if err := p.fe().Flush(); err != nil {
			return err
		}
		if err := p.ready(); err != nil && (p.pc.IsClosed() || p.pc.TxStatus() == idleStatus) {
			return err
		}
		if p.pc.TxStatus() == idleStatus {
			return nil
		}
	}
	return errBadAnswer
}

// fail brings the connection back to where it can be used, and returns the cause: what the server reported, or what was
// wrong with its answer. Either way the answer to the Sync is still to come.
func (p *portal) fail(err error) error {
	if p.s.prepared != nil {
		p.s.prepared = map[string]string{} // a Parse behind the error was skipped; names are not used again
	}
	if _, reported := errors.AsType[*pgconn.PgError](err); reported && !p.pc.IsClosed() {
		if e := p.ready(); e != nil {
			return e
		}
		if e := p.end(); e != nil {
			return e
		}
	}
	return err
}
