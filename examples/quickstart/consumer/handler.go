package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"
)

// handler does the work of events.
type handler struct {
	db         *pgx.Conn
	verb       string
	crashAfter int // 0: never
}

// handle notes the event in the inbox and does its work, in one transaction. An event that is in the inbox already is only
// counted.
func (h *handler) handle(ctx context.Context, msg jetstream.Msg) error {
	id, kind := msg.Headers().Get("id"), msg.Headers().Get("type")
	var event struct {
		OrderID  int64  `json:"order_id"`
		Version  int    `json:"version"`
		Customer string `json:"customer"`
	}
	if err := json.Unmarshal(msg.Data(), &event); err != nil {
		return fmt.Errorf("read event %s: %w", id, err)
	}
	err := pgx.BeginFunc(ctx, h.db, func(tx pgx.Tx) error {
		var seen int
		row := tx.QueryRow(ctx, `
			insert into inbox as i (event_id, order_id, version) values ($1, $2, $3)
			on conflict (event_id) do update set seen = i.seen + 1
			returning seen`, id, event.OrderID, event.Version)
		if err := row.Scan(&seen); err != nil {
			return err
		}
		if seen > 1 {
			return nil // a repeat: done before
		}
		what := fmt.Sprintf("%s %s of order %d for %s", h.verb, kind, event.OrderID, event.Customer)
		_, err := tx.Exec(ctx, "insert into work (event_id, what) values ($1, $2)", id, what)
		return err
	})
	if err != nil {
		return fmt.Errorf("handle event %s: %w", id, err)
	}
	if h.crashAfter > 0 {
		if h.crashAfter--; h.crashAfter == 0 {
			self, err := os.FindProcess(os.Getpid())
			if err != nil {
				return err
			}
			_ = self.Kill()
			select {} // not one statement more
		}
	}
	return nil
}
