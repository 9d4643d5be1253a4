package destination

import (
	"bytes"
	"errors"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/relevo-io/relevo/internal/wire"
)

func mustRules(t testing.TB, noun, forbidden string, limit int) *Rules {
	t.Helper()
	r, err := NewRules(noun, forbidden, limit)
	require.NoError(t, err)
	return r
}

func order() *wire.Event {
	return &wire.Event{
		ID: "e-1", Key: []byte("4711"), Type: "OrderPlaced", AggregateType: "order", ContentType: "application/json",
		Headers: []wire.Header{{Name: "region", Value: []byte("eu")}, {Name: "region", Value: []byte("us")}, {Name: "none"}},
	}
}

func TestAppend(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ to, want string }{
		{"orders", "orders"},
		{"{aggregate_type}-events", "order-events"},
		{"orders.{type}.{key}", "orders.OrderPlaced.4711"},
		{"{id}{content_type}", "e-1application/json"},
		{"{header.region}", "eu"},
		{"a{{b}}c{{{type}}}", "a{b}c{OrderPlaced}"},
		{"ü-{type}-☃", "ü-OrderPlaced-☃"},
	} {
		tmpl, err := Parse(c.to)
		require.NoError(t, err, c.to)
		require.Equal(t, c.to, tmpl.String())
		got, err := tmpl.Append([]byte("keep:"), order(), mustRules(t, "topic", "", 0))
		require.NoError(t, err, c.to)
		require.Equal(t, "keep:"+c.want, string(got))
		require.LessOrEqual(t, tmpl.MinBytes(), len(c.want))
	}
}

func TestConstant(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{"orders": "orders", "a{{b}}": "a{b}"} {
		tmpl, err := Parse(to)
		require.NoError(t, err)
		got, ok := tmpl.Constant()
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	tmpl, err := Parse("{type}")
	require.NoError(t, err)
	_, ok := tmpl.Constant()
	require.False(t, ok)
}

func TestAppendRefuses(t *testing.T) {
	t.Parallel()
	const nats = `[\s*>]`
	for _, c := range []struct {
		name, to, forbidden string
		limit               int
		change              func(*wire.Event)
		code, message       string
	}{
		{"no key", "o.{key}", nats, 0, func(e *wire.Event) { e.Key = nil }, CodeEmpty, `the subject "o.{key}" needs its key, which the event does not have`},
		{"empty key", "{key}", nats, 0, func(e *wire.Event) { e.Key = []byte{} }, CodeEmpty, "needs its key"},
		{"no header", "{header.tenant}", nats, 0, nil, CodeEmpty, `needs the header "tenant"`},
		{"header without value", "{header.none}", nats, 0, nil, CodeEmpty, `needs the header "none"`},
		{"wildcard", "o.{type}", nats, 0, func(e *wire.Event) { e.Type = "a.>" }, CodeInvalid, `its type holds '>', which may not stand in a subject`},
		{"line break", "o.{type}", nats, 0, func(e *wire.Event) { e.Type = "a\r\nPUB" }, CodeInvalid, `'\r'`},
		{"beyond ASCII", "o.{type}", `[^a-zA-Z]`, 0, func(e *wire.Event) { e.Type = "Bestellungö" }, CodeInvalid, `'ö'`},
		{"not UTF-8", "o.{key}", "", 0, func(e *wire.Event) { e.Key = []byte{'a', 0xff} }, CodeInvalid, "not UTF-8"},
		{"too long", "o.{type}", nats, 8, nil, CodeInvalid, "the subject has 13 bytes, the limit is 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			tmpl, err := Parse(c.to)
			require.NoError(t, err)
			e := order()
			if c.change != nil {
				c.change(e)
			}
			got, err := tmpl.Append([]byte("keep"), e, mustRules(t, "subject", c.forbidden, c.limit))
			ee, ok := errors.AsType[*EventError](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, c.code, ee.Code)
			require.Contains(t, ee.Message, c.message)
			require.Equal(t, "keep", string(got))
		})
	}
	// The user's own text may hold what a field may not.
	tmpl, err := Parse("a *>{type}")
	require.NoError(t, err)
	_, err = tmpl.Append(nil, order(), mustRules(t, "subject", nats, 0))
	require.NoError(t, err)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		to     string
		offset int
		hint   string
	}{
		{"", 0, ""},
		{"a\xff", 0, ""},
		{"a{", 1, `"{{"`},
		{"a{type", 1, `"{{"`},
		{"a{type{", 1, `"{{"`},
		{"a}b", 1, `"}}"`},
		{"{}", 0, "the fields are"},
		{"{header.}", 0, "{header.NAME}"},
		{"orders.{typ}", 7, "did you mean {type}?"},
		{"{tpye}", 0, "did you mean {type}?"},
		{"{Type}", 0, "did you mean {type}?"},
		{"{ type }", 0, "did you mean {type}?"},
		{"{aggregateType}", 0, "did you mean {aggregate_type}?"},
		{"{aggregate-type}", 0, "did you mean {aggregate_type}?"},
		{"{aggregate_id}", 0, "did you mean {key}?"},
		{"{event.type}", 0, "did you mean {type}?"},
		{"{headers.Region}", 0, "did you mean {header.Region}?"},
		{"{payload}", 0, "the fields are"},
	} {
		_, err := Parse(c.to)
		se, ok := errors.AsType[*SyntaxError](err)
		require.True(t, ok, "%q: %v", c.to, err)
		require.Equal(t, c.offset, se.Offset, c.to)
		require.Contains(t, se.Hint, c.hint, c.to)
	}
}

func TestNewRulesRefuses(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"[", "ab", "[a]b", "[a]*", "^", "a|bc", "(?:ab)"} {
		_, err := NewRules("topic", bad, 0)
		require.Error(t, err, bad)
	}
}

// The look-up and Go's regexp agree about every kind of class and character.
func TestRulesAgreeWithRegexp(t *testing.T) {
	t.Parallel()
	classes := []string{`[\s*>]`, `[x]`, `[xX]`, `[kK]`, `[^a-z]`, `[\s\S]`, `[^\n]`, `\s`, `\pL`, `[^\x00-\x{10FFFF}]`, `[\pL]`, `[α-ω]`, `.`, `(?i)[k]`}
	rapid.Check(t, func(t *rapid.T) {
		class := rapid.SampledFrom(classes).Draw(t, "class")
		r, err := NewRules("topic", class, 0)
		require.NoError(t, err)
		c := rapid.Rune().Draw(t, "rune")
		want := regexp.MustCompile(class).MatchString(string(c))
		_, got := r.find([]byte(string(c)))
		require.Equal(t, want, got, "%s %q", class, c)
	})
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"orders", "{type}", "{{{type}}}", "{header.a.b}", "}{", "a{"} {
		f.Add(s, "value")
	}
	f.Fuzz(func(t *testing.T, text, value string) {
		tmpl, err := Parse(text)
		if err != nil {
			se, ok := errors.AsType[*SyntaxError](err)
			require.True(t, ok)
			require.LessOrEqual(t, se.Offset, len(text))
			return
		}
		e := &wire.Event{ID: value, Key: []byte(value), Type: value, AggregateType: value, ContentType: value}
		r := mustRules(t, "topic", `[\s]`, 100)
		got, err := tmpl.Append(nil, e, r)
		if err != nil {
			require.Empty(t, got)
			return
		}
		require.True(t, utf8.Valid(got))
		require.LessOrEqual(t, len(got), 100)
		require.GreaterOrEqual(t, len(got), tmpl.MinBytes())
		if c, ok := tmpl.Constant(); ok {
			require.Equal(t, c, string(got))
			require.Equal(t, text, strings.NewReplacer("{", "{{", "}", "}}").Replace(c))
		}
		// What came out is the literals with the value in between, so taking the literals away leaves the value.
		if !strings.ContainsAny(text, "{}") {
			require.True(t, bytes.Equal(got, []byte(text)))
		}
	})
}

func TestAppendAllocatesNothing(t *testing.T) {
	tmpl, err := Parse("orders.{aggregate_type}.{type}.{header.region}")
	require.NoError(t, err)
	e, r, buf := order(), mustRules(t, "subject", `[\s*>]`, 255), make([]byte, 0, 256)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if buf, err = tmpl.Append(buf[:0], e, r); err != nil {
			t.Fatal(err)
		}
	}))
}

func BenchmarkAppend(b *testing.B) {
	tmpl, err := Parse("orders.{aggregate_type}.{type}")
	require.NoError(b, err)
	e, r, buf := order(), mustRules(b, "subject", `[\s*>]`, 255), make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		if buf, err = tmpl.Append(buf[:0], e, r); err != nil {
			b.Fatal(err)
		}
	}
}
