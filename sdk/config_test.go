package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

type common struct {
	Password Secret `json:"password" doc:"The password, if the DSN has none."`
}

type columns struct {
	ID    string `json:"id" doc:"Column of the id."`
	Order string `json:"order"`
}

type testConfig struct {
	common
	DSN      string            `json:"dsn" jsonschema:"required" doc:"Where it is, in libpq's \"keyword=value\" form, or a URL."`
	Timeout  Duration          `json:"timeout" doc:"How long to wait."`
	Window   Size              `json:"window" doc:"How much."`
	Batch    int               `json:"batch" jsonschema:"minimum=1,maximum=10000"`
	Share    string            `json:"sharing" jsonschema:"enum=leader,enum=buckets"`
	Columns  columns           `json:"columns"`
	TLS      *tlsConfig        `json:"tls"`
	Servers  []string          `json:"servers"`
	Labels   map[string]string `json:"labels"`
	Nested   []columns         `json:"nested"`
	Hidden   string            `json:"-"`
	internal string            //nolint:unused // not a key
}

type tlsConfig struct {
	CA  string `json:"ca"`
	Key Secret `json:"key"`
}

func testDefaults() testConfig {
	return testConfig{
		common:  common{Password: "default secret"},
		Timeout: Duration(90 * time.Second),
		Window:  64 << 20,
		Batch:   1000,
		Share:   "leader",
		Columns: columns{ID: "id"},
		Servers: []string{"localhost"},
	}
}

func (c *testConfig) Validate() error {
	var errs []error
	if c.DSN == "bad" {
		errs = append(errs, &ConfigError{Path: "/dsn", Message: "is bad"})
	}
	if c.Batch == 13 {
		errs = append(errs, fmt.Errorf("thirteen: %w", &ConfigError{Path: "/batch", Message: "unlucky"}), errors.New("and so on"))
	}
	return errors.Join(errs...)
}

func decode(s string) (testConfig, error) { return DecodeConfig([]byte(s), testDefaults) }

func TestDecodeConfig(t *testing.T) {
	t.Parallel()
	c, err := decode(`{"dsn": "d", "password": "tiger", "timeout": "2d", "window": 4096, "columns": {"order": "seq"},
		"tls": {"ca": "x"}, "servers": ["a", "b"], "labels": {"k": "v"}, "nested": [{"id": "n"}], "batch": null}`)
	require.NoError(t, err)
	want := testDefaults()
	want.DSN, want.Password, want.Timeout, want.Window = "d", "tiger", Duration(48*time.Hour), 4096
	want.Columns.Order = "seq" // over the default, beside which id stays
	want.TLS = &tlsConfig{CA: "x"}
	want.Servers, want.Labels, want.Nested = []string{"a", "b"}, map[string]string{"k": "v"}, []columns{{ID: "n"}}
	require.Equal(t, want, c)

	c, err = decode(`{"dsn": "d", "tls": {}, "servers": null, "window": "1kB"}`)
	require.NoError(t, err)
	require.Equal(t, &tlsConfig{}, c.TLS, "present and empty is not absent")
	require.Nil(t, c.Servers)
	require.Equal(t, Size(1000), c.Window)
}

func TestDecodeConfigFaults(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		config string
		want   []string
	}{
		{`{"dns": "d"}`, []string{`/dns: unknown key; did you mean "dsn"?`, "/dsn: is required"}},
		{`{"DSN": "d"}`, []string{`/DSN: unknown key; did you mean "dsn"?`, "/dsn: is required"}},
		{`{"dsn": "d", "zzz": 1, "a/b~c": 2}`, []string{"/zzz: unknown key", "/a~1b~0c: unknown key"}},
		{`{"dsn": "d", "dsn": "e"}`, []string{"/dsn: is written twice"}},
		{`{"dsn": 12345}`, []string{"/dsn: is a number, expected a string"}},
		{`{"dsn": "d", "batch": "many"}`, []string{"/batch: is a string, expected a whole number in range"}},
		{`{"dsn": "d", "batch": 1.5}`, []string{"/batch: is a number, expected a whole number in range"}},
		{`{"dsn": "d", "columns": {"idd": "x", "order": 1}}`, []string{
			`/columns/idd: unknown key; did you mean "id"?`, "/columns/order: is a number, expected a string",
		}},
		{`{"dsn": "d", "nested": [{}, {"x": 1}]}`, []string{`/nested/1/x: unknown key; did you mean "id"?`}},
		{`{"dsn": "d", "columns": [], "servers": {}, "labels": 1, "tls": "x"}`, []string{
			"/columns: is not an object", "/servers: is not an array", "/labels: is not an object", "/tls: is not an object",
		}},
		{`{"dsn": "d", "timeout": "5"}`, []string{`/timeout: "5" is not a duration; write for example "250ms", "1m30s" or "2d"`}},
		{`{"dsn": "d", "timeout": 5}`, []string{"/timeout: is a number, expected a string"}},
		{`{"dsn": "d", "window": "5 bananas"}`, []string{`/window: "5 bananas" is not a size; write for example "64MiB", "500kB" or 4096`}},
		{`{"dsn": "d", "window": -1}`, []string{`/window: "-1" is not a size; write for example "64MiB", "500kB" or 4096`}},
		{`{"dsn": "d", "window": true}`, []string{`/window: is not a size; write for example "64MiB", "500kB" or 4096`}},
		{`{"dsn": "d", "Hidden": "x", "internal": "y", "common": {}}`, []string{
			"/Hidden: unknown key", "/internal: unknown key", "/common: unknown key",
		}},
		{`{"dsn": "bad", "batch": 13}`, []string{"/dsn: is bad", "/batch: thirteen: /batch: unlucky", "and so on"}},
		{`[]`, []string{"is not an object"}},
		{`{`, []string{"is not JSON"}},
		{`{} {}`, []string{"is not JSON"}},
		{``, []string{"/dsn: is required"}},
		{`null`, nil},
	} {
		_, err := decode(tt.config)
		if tt.want == nil {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, strings.Join(tt.want, "\n"), tt.config)
		for _, e := range flatten(err) {
			require.IsType(t, &ConfigError{}, e)
		}
	}
}

func TestDecodeConfigStopsCounting(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&b, `, "unknown-key-%d": 1`, i)
	}
	_, err := decode(`{"dsn": "d"` + b.String() + `}`)
	require.Len(t, flatten(err), maxFaults)
}

// TestSecretNeverShows tries every way in which a value is usually printed (I9). What vet refuses is left out: in its
// complaint about a verb, fmt prints what it was given without asking it.
func TestSecretNeverShows(t *testing.T) {
	t.Parallel()
	const tiger = "tiger-42"
	c, err := decode(`{"dsn": "d", "password": "` + tiger + `", "tls": {"key": "` + tiger + `"}}`)
	require.NoError(t, err)
	require.Equal(t, tiger, c.Password.Reveal())
	var out strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10s"} {
		fmt.Fprintf(&out, verb+"\n", c.Password)
	}
	for _, verb := range []string{"%v", "%+v", "%#v"} {
		fmt.Fprintf(&out, verb+"\n", c)
		fmt.Fprintf(&out, verb+"\n", &c)
		fmt.Fprintf(&out, verb+"\n", c.TLS)
	}
	j, err := json.Marshal(c)
	require.NoError(t, err)
	out.Write(j)
	newLogger(&out, "").Info("opened", "config", c, "password", c.Password, "tls", c.TLS)
	slog.New(slog.NewTextHandler(&out, nil)).Info("opened", "config", c, "password", c.Password, "tls", c.TLS)
	for _, wrong := range []string{`"` + tiger, `{"dsn": "d", "password": {"` + tiger + `": 1}}`, `{"dsn": "d", "password": ["` + tiger + `"]}`} {
		_, err := decode(wrong)
		require.Error(t, err)
		fmt.Fprint(&out, err)
	}
	require.Contains(t, out.String(), masked)
	require.NotContains(t, out.String(), tiger)
	require.NotContains(t, out.String(), fmt.Sprintf("%x", tiger))

	_, err = decode(`{"dsn": "d", "password": 20406080}`)
	require.EqualError(t, err, "/password: is a number, expected a string")
}

func TestUnits(t *testing.T) {
	t.Parallel()
	for s, want := range map[string]time.Duration{
		"0": 0, "250ms": 250 * time.Millisecond, "1m30s": 90 * time.Second, "2d": 48 * time.Hour, "1.5d": 36 * time.Hour,
		"1d12h": 36 * time.Hour, "1h0.5s": time.Hour + 500*time.Millisecond, "2h": 2 * time.Hour, "1h10m": 70 * time.Minute, "10s": 10 * time.Second,
	} {
		d, err := ParseDuration(s)
		require.NoError(t, err, s)
		require.Equal(t, want, d.Duration(), s)
		again, err := ParseDuration(d.String())
		require.NoError(t, err, d.String())
		require.Equal(t, d, again)
	}
	for _, s := range []string{"", "d", "1", "-1s", "+1s", "1d-1h", "1h1d", "1 s", "999999999d", "99999999999h", "NaNd", "infd", "1e3s", "1s "} {
		_, err := ParseDuration(s)
		require.Error(t, err, s)
	}
	require.Equal(t, []string{"2d", "1d12h", "1m30s", "2h", "1h10m", "10s", "0s"}, []string{
		Duration(48 * time.Hour).String(), Duration(36 * time.Hour).String(), Duration(90 * time.Second).String(),
		Duration(2 * time.Hour).String(), Duration(70 * time.Minute).String(), Duration(10 * time.Second).String(), Duration(0).String(),
	})

	for s, want := range map[string]Size{
		"0": 0, "4096": 4096, "1B": 1, "500kB": 500_000, "1.5MB": 1_500_000, "2GB": 2e9, "64KiB": 64 << 10, "1.5MiB": 3 << 19, "1GiB": 1 << 30,
	} {
		n, err := ParseSize(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
		again, err := ParseSize(n.String())
		require.NoError(t, err)
		require.Equal(t, n, again)
	}
	for _, s := range []string{"", "B", "-1", "1 MiB", "1mb", "1.5", "0.1B", "9e9", "9223372036854775808", "9999999999GiB", "1TiB", "0x10"} {
		_, err := ParseSize(s)
		require.Error(t, err, s)
	}
	require.Equal(t, "64MiB", Size(64<<20).String())
	require.Equal(t, "4097", Size(4097).String())
	require.Equal(t, "9223372036854775807", Size(math.MaxInt64).String())
}

// compile compiles a schema as the host does.
func compile(t testing.TB, schema []byte) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(schema)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("config.json", doc))
	s, err := c.Compile("config.json")
	require.NoError(t, err)
	return s
}

func TestConfigSchema(t *testing.T) {
	t.Parallel()
	b, err := configSchema(testDefaults)
	require.NoError(t, err)
	require.NotContains(t, string(b), "default secret")
	var s struct {
		Schema               string   `json:"$schema"`
		Type                 string   `json:"type"`
		Required             []string `json:"required"`
		AdditionalProperties *bool    `json:"additionalProperties"`
		Properties           map[string]map[string]any
	}
	require.NoError(t, json.Unmarshal(b, &s))
	require.Equal(t, "https://json-schema.org/draft/2020-12/schema", s.Schema)
	require.Equal(t, "object", s.Type)
	require.Equal(t, []string{"dsn"}, s.Required)
	require.Equal(t, new(false), s.AdditionalProperties)
	p := s.Properties
	require.Equal(t, `Where it is, in libpq's "keyword=value" form, or a URL.`, p["dsn"]["description"])
	require.NotContains(t, p["dsn"], "default")
	require.Equal(t, "The password, if the DSN has none.", p["password"]["description"])
	require.Equal(t, true, p["password"]["writeOnly"])
	require.Equal(t, "string", p["timeout"]["type"])
	require.Equal(t, "1m30s", p["timeout"]["default"])
	require.Equal(t, "64MiB", p["window"]["default"])
	require.Equal(t, []any{"string", "integer"}, p["window"]["type"])
	require.InDelta(t, 1000, p["batch"]["default"], 0)
	require.Equal(t, []any{"leader", "buckets"}, p["sharing"]["enum"])
	require.Equal(t, []any{"localhost"}, p["servers"]["default"])
	require.Equal(t, "id", p["columns"]["properties"].(map[string]any)["id"].(map[string]any)["default"])
	require.Equal(t, false, p["columns"]["additionalProperties"])
	require.NotContains(t, p, "Hidden")
	require.NotContains(t, p, "internal")
	require.NotContains(t, p, "common")

	schema := compile(t, b)
	for config, ok := range map[string]bool{
		`{"dsn": "d"}`:                           true,
		`{}`:                                     false,
		`{"dsn": "d", "x": 1}`:                   false,
		`{"dsn": "d", "window": 4096}`:           true,
		`{"dsn": "d", "window": "64MiB"}`:        true,
		`{"dsn": "d", "window": "64 MiB"}`:       false,
		`{"dsn": "d", "window": -1}`:             false,
		`{"dsn": "d", "timeout": "1d12h"}`:       true,
		`{"dsn": "d", "timeout": "0"}`:           true,
		`{"dsn": "d", "timeout": ""}`:            false,
		`{"dsn": "d", "timeout": "5"}`:           false,
		`{"dsn": "d", "batch": 0}`:               false,
		`{"dsn": "d", "sharing": "none"}`:        false,
		`{"dsn": "d", "tls": {"cert": ""}}`:      false,
		`{"dsn": "d", "labels": {"a": "b"}}`:     true,
		`{"dsn": "d", "nested": [{"id": "x"}]}`:  true,
		`{"dsn": "d", "nested": [{"idd": "x"}]}`: false,
	} {
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(config))
		require.NoError(t, err)
		err = schema.Validate(v)
		require.Equal(t, ok, err == nil, "%s: %v", config, err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	spec := Spec[testConfig]{
		Name: "test", Defaults: testDefaults,
		Check: func(_ context.Context, c testConfig, r CheckRequest) ([]Finding, error) {
			switch c.DSN {
			case "config":
				return nil, Config(errors.New("no such user"))
			case "away":
				return nil, errors.New("refused")
			}
			return []Finding{
				{Severity: OK, Code: "position", Message: string(r.Position) + " " + r.Instance.Pipeline + " " + r.ConstantDestination},
				{Severity: Problem, Code: "c", Path: "/dsn", Message: "m \xff", Hint: "h", SQL: "ALTER …"},
			}, nil
		},
	}
	h := newHost(t, Source(spec, func(context.Context, SourceOpen[testConfig], *SourceStream) error { return nil }))
	client := pluginv1.NewPluginServiceClient(h.conn)
	check := func(config string) (*pluginv1.CheckResponse, error) {
		return client.Check(h.ctx, &pluginv1.CheckRequest{
			Config: []byte(config), Position: []byte("p"), Instance: &pluginv1.Instance{Pipeline: "orders"},
			ConstantDestination: new("topic"),
		})
	}
	r, err := check(`{"dsn": "d"}`)
	require.NoError(t, err)
	require.Len(t, r.GetFindings(), 2)
	require.Equal(t, "p orders topic", r.GetFindings()[0].GetMessage())
	f := r.GetFindings()[1]
	require.Equal(t, []any{pluginv1.Severity_SEVERITY_ERROR, "c", "/dsn", "m \uFFFD", "h", "ALTER …"},
		[]any{f.GetSeverity(), f.GetCode(), f.GetPath(), f.GetMessage(), f.GetHint(), f.GetSql()})

	r, err = check(`{"dns": "d"}`)
	require.NoError(t, err, "a wrong configuration is what a check is for")
	require.Len(t, r.GetFindings(), 2)
	require.Equal(t, codeConfigInvalid, r.GetFindings()[0].GetCode())
	require.Equal(t, "/dns", r.GetFindings()[0].GetPath())
	require.Equal(t, `unknown key; did you mean "dsn"?`, r.GetFindings()[0].GetMessage())

	_, err = check(`{"dsn": "config"}`)
	require.ErrorContains(t, err, "code = FailedPrecondition desc = no such user")
	_, err = check(`{"dsn": "away"}`)
	require.ErrorContains(t, err, "code = Unavailable desc = refused")
}

func TestSpecBugs(t *testing.T) {
	t.Parallel()
	run := func(context.Context, SourceOpen[empty], *SourceStream) error { return nil }
	for _, spec := range []Spec[empty]{
		{},
		{Name: "Upper"},
		{Name: "a--b"},
		{Name: "../x"},
		{Name: "x", KeepsOrder: true},
		{Name: "x", Destination: &Destination{}},
		{Name: "x", MaxMessageBytes: -1},
	} {
		require.Panics(t, func() { Source(spec, run) }, "%+v", spec)
	}
	require.Panics(t, func() {
		StreamSink(Spec[empty]{Name: "x", Destination: &Destination{Forbidden: "["}}, ackAll)
	})
	require.Panics(t, func() { StreamSink(Spec[empty]{Name: "x", HoldsKeys: true}, ackAll) })
}

func FuzzDecodeConfig(f *testing.F) {
	f.Add(`{"dsn": "d", "password": "x", "timeout": "1d2h", "window": "1.5MiB", "tls": {"ca": "y"}, "servers": ["a"]}`)
	f.Add(`{"dns": [{}], "columns": {"id": null}, "nested": [{"id": 1}, null], "labels": {"a": {}}, "batch": 1e99}`)
	f.Add(`{"dsn": "d", "dsn": {"\ud800": "\u0000"}}`)
	b, err := configSchema(testDefaults)
	require.NoError(f, err)
	schema := compile(f, b)
	f.Fuzz(func(t *testing.T, s string) {
		c, err := decode(s)
		if err != nil {
			require.NotEmpty(t, flatten(err))
			return
		}
		// What is decoded has no key that the schema does not know (null, numbers and Validate are stricter or laxer).
		var m map[string]any
		if json.Unmarshal([]byte(s), &m) == nil {
			for k := range m {
				require.Contains(t, string(b), fmt.Sprintf("%q:", k))
			}
		}
		// And what it means can be written down and read again.
		c.Password = ""
		c.TLS = nil
		out, err := json.Marshal(c)
		require.NoError(t, err)
		again, err := decode(string(out))
		require.NoError(t, err, string(out))
		again.Password = ""
		require.Equal(t, c.Timeout, again.Timeout)
		require.Equal(t, c.Window, again.Window)
		_ = schema
	})
}

func FuzzUnits(f *testing.F) {
	for _, s := range []string{"1d2h3m4s5ms", "1.5d", "64MiB", "4096", "0.5kB", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseDuration(s); err == nil {
			require.GreaterOrEqual(t, d, Duration(0))
			again, err := ParseDuration(d.String())
			require.NoError(t, err)
			require.Equal(t, d, again)
		}
		if n, err := ParseSize(s); err == nil {
			require.GreaterOrEqual(t, n, Size(0))
			again, err := ParseSize(n.String())
			require.NoError(t, err)
			require.Equal(t, n, again)
		}
	})
}
