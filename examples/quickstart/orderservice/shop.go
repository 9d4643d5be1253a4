package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// shop is the business: orders that are placed, paid, packed and shipped.
type shop struct {
	db *pgxpool.Pool
}

// order is also the payload of its events: what the order is like after the event.
type order struct {
	ID         int64  `json:"order_id"`
	Customer   string `json:"customer"`
	Status     string `json:"status"`
	TotalCents int64  `json:"total_cents"`
	Version    int    `json:"version"`
}

// errDeclined rolls a transaction back after its event was written. Nobody may ever hear of that event.
var errDeclined = errors.New("payment declined")

// errComplete says that an order has been shipped already.
var errComplete = errors.New("order is complete")

// place makes a new order.
func (s *shop) place(ctx context.Context, customer string, cents int64, declined bool) (o order, err error) {
	return s.change(ctx, "OrderPlaced", declined, `
		insert into orders (customer, status, total_cents) values ($1, 'placed', $2)
		returning id, customer, status, total_cents, version`, customer, cents)
}

// advance takes an order one step further.
func (s *shop) advance(ctx context.Context, id int64, declined bool) (order, error) {
	// The update locks the row: of two sessions that advance one order the second waits here, and so takes the later
	// version and the later seq.
	return s.change(ctx, "", declined, `
		update orders set version = version + 1, status = (array['placed', 'paid', 'packed', 'shipped'])[version + 1]
		where id = $1 and version < 4
		returning id, customer, status, total_cents, version`, id)
}

// change runs a statement that changes one order, and writes its event into the outbox, in one transaction: either both are
// there afterwards or neither.
func (s *shop) change(ctx context.Context, event string, declined bool, sql string, args ...any) (o order, err error) {
	var eventID string
	err = pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		row := tx.QueryRow(ctx, sql, args...)
		err := row.Scan(&o.ID, &o.Customer, &o.Status, &o.TotalCents, &o.Version)
		if errors.Is(err, pgx.ErrNoRows) {
			return errComplete
		}
		if err != nil {
			return fmt.Errorf("change the order: %w", err)
		}
		if event == "" {
			event = map[string]string{"paid": "OrderPaid", "packed": "OrderPacked", "shipped": "OrderShipped"}[o.Status]
		}
		payload, err := json.Marshal(o)
		if err != nil {
			return err
		}
		row = tx.QueryRow(ctx, `
			insert into outbox (aggregate_type, aggregate_id, type, payload) values ('order', $1, $2, $3)
			returning id`, o.ID, event, payload)
		if err := row.Scan(&eventID); err != nil {
			return fmt.Errorf("write the event: %w", err)
		}
		if declined {
			return errDeclined
		}
		return nil
	})
	if errors.Is(err, errDeclined) {
		// For the demo's final check only.
		if _, noteErr := s.db.Exec(ctx, "insert into rolled_back values ($1)", eventID); noteErr != nil {
			return o, noteErr
		}
	}
	return o, err
}
