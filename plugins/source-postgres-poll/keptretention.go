package main

import (
	"context"
	"fmt"
)

// Which kept rows may go. Nothing in a row says that it is published; the position does: what had ended at its old
// snapshot is. A position says so only once the host has it on its disk. One that was merely sent may never get there, and
// the rows are then read again: from a table that must still have them. What was read of the pair behind old does not
// count before all of it is, for a row that is not read yet can have a lower transaction id, or a lower number, than one
// that is.

// resume takes the position that the host began with: it was stored by an earlier attempt, and fits this server.
func (f *keptFlight) resume(stored []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stored = stored
}

// published is the old snapshot of the position that the host has on its disk; the zero value: nothing is published.
func (f *keptFlight) published() (txSnapshot, error) {
	f.mu.Lock()
	stored := f.stored
	f.mu.Unlock()
	if stored == nil {
		return txSnapshot{}, nil
	}
	p, err := decodePosition(stored)
	return p.old, err
}

// keepHouse has the figures of housekeeping in the status.
func (f *keptFlight) keepHouse(c *chores) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.chores = c
}

// keptBlockers are the conditions on rows that are not published yet, or are not known to be. A table that is looked at
// must be closed to new rows, or locked: a transaction that is open has no row that anybody sees.
func keptBlockers(old txSnapshot, tx string) []blocker {
	if old.none() {
		return []blocker{{"true", "it is old, and no position covers its rows yet"}}
	}
	const why = "it is old, and rows in it are not published yet"
	// One by one, so that each can use the index.
	found := []blocker{{fmt.Sprintf("%s >= '%d'::xid8", tx, old.xmax), why}}
	if len(old.xip) > 0 {
		running := append(appendXIDs([]byte{'{'}, old.xip), '}')
		found = append(found, blocker{fmt.Sprintf("%s = ANY('%s'::xid8[])", tx, running), why})
	}
	return found
}

// published is what would count as published if the pipeline started now.
func (d *doctor) published(ctx context.Context) (txSnapshot, error) {
	v, err := identify(ctx, d.s, d.t)
	if err != nil {
		return txSnapshot{}, err
	}
	if d.stored != nil {
		p, gap := v.judge(d.stored)
		if gap == nil {
			return p.old, nil
		}
		if d.c.AcceptGap != gap.Token() {
			return txSnapshot{}, nil // it would not start
		}
	}
	if d.c.backlog() == backlogSkip {
		return v.snap, nil
	}
	return txSnapshot{}, nil
}
