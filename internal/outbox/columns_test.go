package outbox

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseName(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"outbox":               `"outbox"`,
		"public.outbox":        `"public"."outbox"`,
		"Sales.OutBox":         `"Sales"."OutBox"`,
		`my schema."a.b"`:      `"my schema"."a.b"`,
		`"a""b".c`:             `"a""b"."c"`,
		`x; drop table y.o"ps`: `"x; drop table y"."o""ps"`,
	} {
		n, err := ParseName(in)
		require.NoError(t, err, in)
		require.Equal(t, want, n.String())
	}
	for _, in := range []string{"", ".", "a.", ".a", "a.b.c", `"a`, `"a"b`, `""`} {
		_, err := ParseName(in)
		require.Error(t, err, in)
	}
}

func TestRefs(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"a", "Headers#/PARTITION_ID", "c#/a~1b/~0/0", "c#//x"} {
		r, err := ParseRef(s)
		require.NoError(t, err, s)
		require.Equal(t, s, r.String())
	}
	r, _ := ParseRef("c#/a~1b/~01")
	require.Equal(t, []string{"a/b", "~1"}, r.Pointer)
	for _, s := range []string{"#/a", "c#", "c#a", "c#/"} {
		_, err := ParseRef(s)
		require.Error(t, err, s)
	}
}

func TestColumnsJSON(t *testing.T) {
	t.Parallel()
	for _, s := range []string{
		`{"headers":"h"}`, `{"headers":["n","v"]}`, `{"headers":{"a":"x","b":"y#/z"}}`,
		`{"time":"at"}`, `{"time":{"column":"at","zone":"UTC"}}`, `{"time":{"column":"at","unit":"s"}}`, `{"id":"","order":"no"}`,
	} {
		var c Columns
		require.NoError(t, json.Unmarshal([]byte(s), &c), s)
		b, err := json.Marshal(c)
		require.NoError(t, err)
		require.JSONEq(t, s, string(b))
	}
	for _, s := range []string{
		`{"headers":["n"]}`, `{"headers":1}`, `{"headers":{"a":1}}`,
		`{"time":{"zone":"UTC"}}`, `{"time":{"column":"a","unit":"h"}}`, `{"time":{"column":"a","tz":"h"}}`, `{"time":1}`,
	} {
		var c Columns
		require.Error(t, json.Unmarshal([]byte(s), &c), s)
	}
}

func TestMap(t *testing.T) {
	t.Parallel()
	m, err := Map("", nil)
	require.NoError(t, err)
	require.Equal(t, "aggregate_id", m.Key.Column)
	require.True(t, m.optional["order"])

	none, order := "", "seq"
	m, err = Map("", &Columns{Key: &none, Order: &order, ContentType: new("application/x")})
	require.NoError(t, err)
	require.Empty(t, m.Key.Column)
	require.False(t, m.optional["order"], "what was written must be there")
	require.Equal(t, "application/x", m.MIME)
	require.Equal(t, "payload", m.Payload.Column)

	m, err = Map("debezium", &Columns{Order: &order})
	require.NoError(t, err)
	require.Equal(t, "aggregateid", m.Key.Column)
	again, err := Map("debezium", nil)
	require.NoError(t, err)
	require.Empty(t, again.Order, "presets are not written to")

	for code, c := range map[string]Columns{
		"column_required": {ID: &none},
		"id_is_pointer":   {ID: new("doc#/id")},
		"column_invalid":  {Key: new("doc#id")},
	} {
		_, err := Map("", &c)
		p, ok := errors.AsType[*Problem](err)
		require.True(t, ok, code)
		require.Equal(t, code, p.Code)
	}
	_, err = Map("debezum", nil)
	require.ErrorContains(t, err, "debezum")
}

func TestTimes(t *testing.T) {
	t.Parallel()
	want := time.Date(2024, 7, 1, 10, 0, 0, 123456000, time.UTC).UnixMicro()
	for _, s := range []string{
		"2024-07-01T10:00:00.123456Z", "2024-07-01 12:00:00.123456+02", "2024-07-01 12:00:00.123456+02:00", "2024-07-01T12:00:00.123456+0200",
		"2024-07-01 10:00:00.123456", "2024-07-01T10:00:00.123456",
	} {
		got, ok, err := readISO([]byte(s))
		require.NoError(t, err, s)
		require.True(t, ok)
		require.Equal(t, want, got, s)
	}
	_, _, err := readISO([]byte("yesterday"))
	require.Error(t, err)

	for unit, factor := range map[string]int64{"": 1000, Milliseconds: 1000, Seconds: 1_000_000, Microseconds: 1} {
		f, p := newTimeField(Time{Column: "c", Unit: unit}, &Column{Name: "c", Type: oidInt8})
		require.Nil(t, p)
		got, ok, err := f.read([]byte{0, 0, 0, 0, 0, 0, 0, 7})
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, 7*factor, got)
		_, _, err = f.read([]byte{0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
		require.Equal(t, factor != 1, err != nil, "no overflow")
	}
	_, p := newTimeField(Time{Column: "c", Zone: "Mars/Olympus"}, &Column{Name: "c", Type: oidTimestamp})
	require.Equal(t, "time_zone_unknown", p.Code)
}

func TestOperandLists(t *testing.T) {
	t.Parallel()
	list := func(typ uint32, elements ...string) string {
		l := []byte{'{'}
		o := Operand{operandOf(Column{Name: "c", Type: typ})}
		for _, e := range elements {
			l = o.Append(l, []byte(e))
		}
		return string(append(l, '}'))
	}
	require.Equal(t, `{"1","-2"}`, list(oidInt8, "1", "x", "-2", "99999999999999999999", ""))
	require.Equal(t, `{"11111111-2222-3333-4444-555555555555"}`, list(oidUUID, "11111111-2222-3333-4444-555555555555", "1"))
	require.Equal(t, `{"a\"b\\c","NULL",""}`, list(oidText, `a"b\c`, "NULL", "", "\xff", "a\x00"))
	require.Equal(t, `{"\\x00ff"}`, list(oidBytea, "\x00\xff"))
}
