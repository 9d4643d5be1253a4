package outbox

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// postgresEpoch is 2000-01-01T00:00:00Z in microseconds since 1970.
const postgresEpoch = 946684800_000_000

var errTime = errors.New("not a time")

// timeField is where the time of an event comes from.
type timeField struct {
	col    int // -1: not mapped
	ref    string
	format int16
	read   func(v []byte) (micro int64, ok bool, err error)
}

// newTimeField chooses how a column is read; without its col.
func newTimeField(t Time, c *Column) (timeField, *Problem) {
	f := timeField{ref: c.Name, format: binaryFormat}
	switch c.Type {
	case oidTimestamptz:
		f.read = readTimestamp
	case oidTimestamp:
		if t.Zone == "" {
			return f, &Problem{
				Code: "time_zone_missing", Path: "/columns/time",
				Message: fmt.Sprintf("the time column %s is a timestamp without time zone", Quote(c.Name)),
				Hint:    fmt.Sprintf("say which zone it is in: time: {column: %s, zone: UTC}", c.Name),
			}
		}
		loc, err := zone(t.Zone)
		if err != nil {
			return f, &Problem{Code: "time_zone_unknown", Path: "/columns/time/zone", Message: err.Error(), Hint: "write a name of the IANA database, for example Europe/Madrid"}
		}
		f.read = func(v []byte) (int64, bool, error) {
			micro, ok, err := readTimestamp(v)
			if ok && loc != time.UTC {
				w := time.UnixMicro(micro).UTC()
				micro = time.Date(w.Year(), w.Month(), w.Day(), w.Hour(), w.Minute(), w.Second(), w.Nanosecond(), loc).UnixMicro()
			}
			return micro, ok, err
		}
	case oidInt2, oidInt4, oidInt8:
		factor := int64(1000)
		switch t.Unit {
		case Seconds:
			factor = 1_000_000
		case Microseconds:
			factor = 1
		}
		f.read = func(v []byte) (int64, bool, error) {
			n, err := readInt(v)
			if err != nil || n > math.MaxInt64/factor || n < math.MinInt64/factor {
				return 0, false, errTime
			}
			return n * factor, true, nil
		}
	case oidText, oidVarchar:
		f.format = textFormat
		f.read = readISO
	default:
		return f, &Problem{
			Code: "time_type_unsupported", Path: "/columns/time", Message: fmt.Sprintf("the time column %s is of type %s", Quote(c.Name), c.SQLType),
			Hint: `a time is a timestamptz, a timestamp with its zone, an integer or ISO 8601 text; write time: "" to do without`,
		}
	}
	return f, nil
}

// readTimestamp reads the binary form of timestamp and timestamptz. Infinity is no time.
func readTimestamp(v []byte) (int64, bool, error) {
	if len(v) != 8 {
		return 0, false, errTime
	}
	n := int64(binary.BigEndian.Uint64(v))
	if n == math.MaxInt64 || n == math.MinInt64 {
		return 0, false, nil
	}
	return n + postgresEpoch, true, nil
}

// readInt reads the binary form of an integer of any size.
func readInt(v []byte) (int64, error) {
	switch len(v) {
	case 2:
		return int64(int16(binary.BigEndian.Uint16(v))), nil
	case 4:
		return int64(int32(binary.BigEndian.Uint32(v))), nil
	case 8:
		return int64(binary.BigEndian.Uint64(v)), nil
	}
	return 0, fmt.Errorf("integer of %d bytes", len(v))
}

// isoForms are tried in order; a text without an offset is in UTC.
var isoForms = []string{
	time.RFC3339Nano, "2006-01-02 15:04:05.999999999Z07:00", "2006-01-02 15:04:05.999999999Z07", "2006-01-02T15:04:05.999999999Z0700",
	"2006-01-02T15:04:05.999999999", "2006-01-02 15:04:05.999999999", "2006-01-02",
}

func readISO(v []byte) (int64, bool, error) {
	if len(v) == 0 {
		return 0, false, nil
	}
	for _, form := range isoForms {
		if t, err := time.Parse(form, string(v)); err == nil {
			return t.UnixMicro(), true, nil
		}
	}
	return 0, false, errTime
}
