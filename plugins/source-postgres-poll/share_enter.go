package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/relevo-io/relevo/internal/outbox"
	"github.com/relevo-io/relevo/sdk"
)

// enter takes a place among the relays that share the outbox. It stands by while a leader has it to itself, and refuses to
// share with a relay that sees it otherwise.
//
// The kind is locked before the place: whoever sees that we are here must see of which kind we are. And we look for
// strangers once we are in, so that of two that enter at the same time at least one sees the other.
func (s *source) enter(ctx context.Context, reader *session) (*outbox.Layout, shareKeys, error) {
	for {
		_, keys, err := s.shareKeys(ctx, reader)
		if err != nil {
			return nil, keys, softly(ctx, lost(err, "connection_lost"))
		}
		// Nobody takes it otherwise than shared.
		if _, err := reader.tryLockShared(ctx, keys.variant); err != nil {
			return nil, keys, softly(ctx, lost(err, "connection_lost"))
		}
		if err := s.standByFor(ctx, "another relay reads this outbox alone (sharing: leader)", func(ctx context.Context) (bool, error) {
			return reader.tryLockShared(ctx, keys.presence)
		}); err != nil {
			return nil, keys, err
		}
		who, err := reader.stranger(ctx, keys)
		if err != nil {
			return nil, keys, softly(ctx, lost(fmt.Errorf("look at who shares the outbox: %w", err), "connection_lost"))
		}
		if who != "" {
			return nil, keys, mismatch(who)
		}
		// The table may have been replaced while we stood by.
		layout, now, err := s.shareKeys(ctx, reader)
		if err == nil && now.presence == keys.presence && now.variant == keys.variant {
			return layout, keys, nil
		}
		if e := reader.unlockShared(ctx, keys.presence, keys.variant); err == nil {
			err = e
		}
		if err != nil {
			return nil, keys, softly(ctx, lost(err, "connection_lost"))
		}
	}
}

// mismatch: both would read some rows, or each half of a key's.
func mismatch(who string) error {
	return sdk.Config(fmt.Errorf("a relay with another configuration shares this outbox: %s", who)).WithCode("sharing_mismatch").
		WithHint("relays that share an outbox need the same pending, columns.key and columns.id, and the same time zone and search_path of their role; stop the other one, or give both one configuration")
}

// shareKeys looks the table up and finds out which locks stand for it and for our idea of it.
func (s *source) shareKeys(ctx context.Context, reader *session) (*outbox.Layout, shareKeys, error) {
	l, err := s.layout(ctx, reader)
	if err != nil {
		return nil, shareKeys{}, err
	}
	// What the text of a key may depend on, and what pending means.
	var settings string
	err = reader.conn.QueryRow(ctx, `SELECT concat_ws(E'\n', current_setting('TimeZone'), current_setting('extra_float_digits'),
		current_setting('lc_monetary'), current_setting('search_path'))`).Scan(&settings)
	if err != nil {
		return nil, shareKeys{}, fmt.Errorf("look at the session: %w", err)
	}
	return l, newShareKeys(l.Table.OID, variant(l.Bucket(), s.c.Pending, settings)), nil
}

// variant is what a relay's idea of which row is whose depends on.
func variant(of ...string) string { return strings.Join(of, "\x00") }
