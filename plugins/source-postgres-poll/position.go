package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// txSnapshot is a pg_snapshot: which transactions had ended at a moment. The zero value: none had.
type txSnapshot struct {
	xmin, xmax uint64
	xip        []uint64 // running, ascending, within [xmin, xmax)
}

// parseSnapshot reads xmin:xmax:xip,… as PostgreSQL writes it, and refuses what PostgreSQL would.
func parseSnapshot(text string) (txSnapshot, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return txSnapshot{}, fmt.Errorf("%q is not xmin:xmax:list", text)
	}
	var s txSnapshot
	var err error
	if s.xmin, err = parseXID(parts[0]); err != nil {
		return txSnapshot{}, err
	}
	if s.xmax, err = parseXID(parts[1]); err != nil {
		return txSnapshot{}, err
	}
	if s.xmin == 0 || s.xmax < s.xmin {
		return txSnapshot{}, fmt.Errorf("%q has no room between xmin and xmax", text)
	}
	if parts[2] == "" {
		return s, nil
	}
	for x := range strings.SplitSeq(parts[2], ",") {
		n, err := parseXID(x)
		if err != nil {
			return txSnapshot{}, err
		}
		if n < s.xmin || n >= s.xmax || len(s.xip) > 0 && n <= s.xip[len(s.xip)-1] {
			return txSnapshot{}, fmt.Errorf("%q is not in order", text)
		}
		s.xip = append(s.xip, n)
	}
	return s, nil
}

// parseXID takes digits only, as the server writes them.
func parseXID(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > math.MaxInt64 || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("%q is not a transaction id", text)
	}
	return n, nil
}

func (s txSnapshot) String() string {
	if s.none() {
		return ""
	}
	b := fmt.Appendf(nil, "%d:%d:", s.xmin, s.xmax)
	return string(appendXIDs(b, s.xip))
}

func appendXIDs(b []byte, xids []uint64) []byte {
	for i, x := range xids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, x, 10)
	}
	return b
}

func (s txSnapshot) none() bool { return s.xmax == 0 }

func (s txSnapshot) equal(o txSnapshot) bool {
	return s.xmin == o.xmin && s.xmax == o.xmax && slices.Equal(s.xip, o.xip)
}

// ended reports whether the transaction had ended.
func (s txSnapshot) ended(xid uint64) bool {
	if xid >= s.xmax {
		return false
	}
	_, running := slices.BinarySearch(s.xip, xid)
	return !running
}

// follows reports whether everything that had ended at o had ended at s, too.
func (s txSnapshot) follows(o txSnapshot) bool {
	if s.xmax < o.xmax {
		return false
	}
	for _, x := range s.xip {
		if o.ended(x) {
			return false
		}
	}
	return true
}

// position is where the reading of kept rows stands. Everything that had ended at old is published; of what ended between
// old and new, everything up to after in the order column. It can only be understood with the server that it is of, so
// that is in it, too.
type position struct {
	system   uint64 // system identifier of the cluster
	timeline uint32
	database uint32 // oid
	table    uint32 // oid

	old   txSnapshot // the zero value: nothing is published
	new   txSnapshot // the zero value: between two pairs
	after int64      // with new

	lsn uint64    // end of the WAL when the newer of the two was taken
	at  time.Time // and the server's clock
}

// positionVersion is the only one so far.
const positionVersion = 1

// positionText is a position as the host keeps it. It is JSON because the host shows it to people.
type positionText struct {
	Version  int    `json:"v"`
	System   string `json:"system"`
	Timeline uint32 `json:"timeline"`
	Database uint32 `json:"database"`
	Table    uint32 `json:"table"`
	Old      string `json:"old,omitempty"`
	New      string `json:"new,omitempty"`
	After    *int64 `json:"after,omitempty"`
	LSN      uint64 `json:"lsn"`
	At       int64  `json:"at"` // µs since 1970
}

func (p position) encode() []byte {
	t := positionText{
		Version: positionVersion, System: strconv.FormatUint(p.system, 10), Timeline: p.timeline, Database: p.database, Table: p.table,
		Old: p.old.String(), New: p.new.String(), LSN: p.lsn, At: p.at.UnixMicro(),
	}
	if !p.new.none() {
		t.After = &p.after
	}
	b, err := json.Marshal(t)
	if err != nil {
		panic("BUG: encode a position: " + err.Error())
	}
	return b
}

// decodePosition is strict: a position that is only nearly understood would leave events out.
func decodePosition(b []byte) (position, error) {
	var t positionText
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return position{}, fmt.Errorf("read the position: %w", err)
	}
	if d.More() {
		return position{}, errors.New("read the position: something follows it")
	}
	if t.Version != positionVersion {
		return position{}, fmt.Errorf("read the position: its version is %d, and this plugin knows %d", t.Version, positionVersion)
	}
	p := position{timeline: t.Timeline, database: t.Database, table: t.Table, lsn: t.LSN, at: time.UnixMicro(t.At)}
	var err error
	if p.system, err = strconv.ParseUint(t.System, 10, 64); err != nil {
		return position{}, fmt.Errorf("read the position: the system %q is no number", t.System)
	}
	if t.Old != "" {
		if p.old, err = parseSnapshot(t.Old); err != nil {
			return position{}, fmt.Errorf("read the position: %w", err)
		}
	}
	if t.New != "" {
		if p.new, err = parseSnapshot(t.New); err != nil {
			return position{}, fmt.Errorf("read the position: %w", err)
		}
	}
	switch {
	case t.Old == "" && t.New == "":
		return position{}, errors.New("read the position: it has no snapshot")
	case (t.New == "") != (t.After == nil):
		return position{}, errors.New("read the position: a new snapshot and a place in it belong together")
	case t.New != "" && !p.new.follows(p.old):
		return position{}, errors.New("read the position: the new snapshot is older than the old one")
	}
	if t.After != nil {
		p.after = *t.After
	}
	return p, nil
}

// newest is the later of the two snapshots.
func (p position) newest() txSnapshot {
	if p.new.none() {
		return p.old
	}
	return p.new
}
