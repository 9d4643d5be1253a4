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

// portal is one read over the extended protocol, message by message: pgx fetches whole results, and a part of one needs
// Execute with a row limit. (A cursor would do the same with two more statements, in a transaction of its own.) What it
// sends is flushed by execute and sync. Between bind and sync the server is in a transaction.
type portal struct {
	s        *session
	pc       *pgconn.PgConn
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

// execute asks for n rows. pgproto3 reports what is wrong with the connection at the next receive.
func (p *portal) execute(n int) {
	p.fe().SendExecute(&pgproto3.Execute{MaxRows: uint32(n)})
	p.fe().Send(&pgproto3.Flush{})
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

// first reads a result of one row.
func (p *portal) first(row func(values [][]byte) error) error {
	for {
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
			return nil
		}
	}
}

// rows reads one step. more says that the portal may have more rows.
func (p *portal) rows(row func(values [][]byte) bool) (more bool, err error) {
	for {
		m, err := p.receive()
		if p.canceled && isCode(err, codeCanceled) {
			return false, nil // as we asked; the transaction is over, and fail has nothing to tell
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
			return true, nil
		case *pgproto3.CommandComplete, *pgproto3.EmptyQueryResponse:
			return false, nil
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

// sync closes the portal and its transaction.
func (p *portal) sync() error {
	p.fe().SendSync(&pgproto3.Sync{})
	if err := p.fe().Flush(); err != nil {
		return err
	}
	for {
		m, err := p.receive()
		if p.canceled && isCode(err, codeCanceled) {
			continue // it reached the server after the last row
		}
		if err != nil {
			return err
		}
		if _, ok := m.(*pgproto3.ReadyForQuery); ok {
			return nil
		}
	}
}

// fail brings the connection back to where it can be used, and returns the cause.
func (p *portal) fail(err error) error {
	if p.s.prepared != nil {
		p.s.prepared = map[string]string{} // a Parse behind the error was skipped; names are not used again
	}
	if _, reported := errors.AsType[*pgconn.PgError](err); reported && !p.pc.IsClosed() {
		if e := p.sync(); e != nil {
			return e
		}
	}
	return err
}
