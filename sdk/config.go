package sdk

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// ConfigError is one thing that is wrong with a configuration. A Validate method may return one, or several joined, to
// say where; any other error has no place.
type ConfigError struct {
	Path    string // JSON pointer: "/columns/order"; "": the whole
	Message string // without the path
}

func (e *ConfigError) Error() string {
	if e.Path == "" {
		return e.Message
	}
	return e.Path + ": " + e.Message
}

// DecodeConfig decodes a configuration, a JSON object, over the defaults (nil: the zero C), and calls its Validate
// method if it has one. It is strict: a key that C does not have, a key that is written twice or in another case, and a
// missing one that is tagged `jsonschema:"required"` are errors. It reports all faults, joined, each a *ConfigError.
// null leaves the default, except for pointers, slices and maps, which it empties.
//
// Faults never quote a value of a Secret, nor of anything but sizes, durations and names.
func DecodeConfig[C any](data []byte, defaults func() C) (C, error) {
	var c C
	if defaults != nil {
		c = defaults()
	}
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	if !json.Valid(data) {
		return c, &ConfigError{Message: "is not JSON"}
	}
	var d decoder
	d.value("", data, reflect.ValueOf(&c).Elem())
	if len(d.faults) == 0 {
		if v, ok := any(&c).(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				d.faults = append(d.faults, flatten(err)...)
			}
		}
	}
	return c, errors.Join(d.faults...)
}

// flatten takes joined errors apart, and makes each a *ConfigError.
func flatten(err error) []error {
	if e, ok := err.(*ConfigError); ok { //nolint:errorlint // one that is wrapped keeps its text, below
		return []error{e}
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	if e, ok := errors.AsType[*ConfigError](err); ok {
		return []error{&ConfigError{Path: e.Path, Message: err.Error()}}
	}
	return []error{&ConfigError{Message: err.Error()}}
}

// maxFaults is where a decoder stops to look for more.
const maxFaults = 20

// decoder walks a value and its type together, for the sake of paths.
type decoder struct{ faults []error }

func (d *decoder) fault(path, format string, a ...any) {
	if len(d.faults) < maxFaults {
		d.faults = append(d.faults, &ConfigError{Path: path, Message: fmt.Sprintf(format, a...)})
	}
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// value decodes valid JSON into v.
func (d *decoder) value(path string, data []byte, v reflect.Value) {
	data = bytes.TrimSpace(data)
	null := string(data) == "null"
	t := v.Type()
	switch pt := reflect.PointerTo(t); {
	case t.Kind() != reflect.Pointer && (pt.Implements(jsonUnmarshaler) || pt.Implements(textUnmarshaler)):
		d.leaf(path, data, v)
	case t.Kind() == reflect.Pointer && !null:
		p := reflect.New(t.Elem())
		if !v.IsNil() {
			p.Elem().Set(v.Elem()) // over the default, without writing to it
		}
		d.value(path, data, p.Elem())
		v.Set(p)
	case t.Kind() == reflect.Struct && !null:
		d.structure(path, data, v)
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 && !null:
		d.slice(path, data, v)
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && !null:
		d.mapping(path, data, v)
	default:
		d.leaf(path, data, v)
	}
}

// leaf decodes what encoding/json does well enough.
func (d *decoder) leaf(path string, data []byte, v reflect.Value) {
	err := json.Unmarshal(data, v.Addr().Interface())
	if err == nil {
		return
	}
	if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		// Its own text quotes numbers, which may be half of a secret.
		kind, _, _ := strings.Cut(te.Value, " ")
		d.fault(path, "is %s, expected %s", article(kind), expected(v.Type()))
		return
	}
	d.fault(path, "%s", err)
}

func article(kind string) string {
	switch kind {
	case "array", "object":
		return "an " + kind
	case "bool":
		return "a boolean"
	}
	return "a " + kind
}

// expected names a Go type as a person who writes YAML thinks of it.
func expected(t reflect.Type) string {
	if reflect.PointerTo(t).Implements(textUnmarshaler) {
		return "a string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "a boolean"
	case reflect.String:
		return "a string"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "an array"
	case reflect.Pointer:
		return expected(t.Elem())
	}
	if t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64 {
		return "a whole number in range"
	}
	return t.String()
}

func (d *decoder) slice(path string, data []byte, v reflect.Value) {
	var raw []json.RawMessage
	if data[0] != '[' || json.Unmarshal(data, &raw) != nil {
		d.fault(path, "is not an array")
		return
	}
	s := reflect.MakeSlice(v.Type(), len(raw), len(raw))
	for i := range raw {
		d.value(path+"/"+strconv.Itoa(i), raw[i], s.Index(i))
	}
	v.Set(s)
}

func (d *decoder) mapping(path string, data []byte, v reflect.Value) {
	m := reflect.MakeMap(v.Type())
	d.object(path, data, func(key string, raw json.RawMessage) {
		e := reflect.New(v.Type().Elem()).Elem()
		d.value(pointer(path, key), raw, e)
		m.SetMapIndex(reflect.ValueOf(key).Convert(v.Type().Key()), e)
	})
	v.Set(m)
}

func (d *decoder) structure(path string, data []byte, v reflect.Value) {
	fields := fieldsOf(v.Type())
	seen := make(map[string]bool, len(fields))
	if !d.object(path, data, func(key string, raw json.RawMessage) {
		f, ok := fields[key]
		if !ok {
			d.unknown(path, key, fields)
			return
		}
		seen[key] = true
		d.value(pointer(path, key), raw, fieldByIndex(v, f.Index))
	}) {
		return
	}
	for _, name := range sortedNames(fields) {
		if !seen[name] && required(fields[name]) {
			d.fault(pointer(path, name), "is required")
		}
	}
}

// object calls f for each key in turn. It reports whether data is an object.
func (d *decoder) object(path string, data []byte, f func(key string, raw json.RawMessage)) bool {
	if data[0] != '{' {
		d.fault(path, "is not an object")
		return false
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	_, _ = dec.Token()
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		var raw json.RawMessage
		if err != nil || !ok || dec.Decode(&raw) != nil {
			d.fault(path, "is not JSON") // not reached: the whole was valid
			return false
		}
		if seen[key] {
			d.fault(pointer(path, key), "is written twice")
			continue
		}
		seen[key] = true
		f(key, raw)
	}
	if _, err := dec.Token(); err != nil && !errors.Is(err, io.EOF) {
		d.fault(path, "is not JSON")
	}
	return true
}

func (d *decoder) unknown(path, key string, fields map[string]reflect.StructField) {
	hint := ""
	if near := nearest(key, sortedNames(fields)); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	d.fault(pointer(path, key), "unknown key%s", hint)
}

// fieldsOf maps the JSON names of a struct to its fields, those of embedded structs included.
func fieldsOf(t reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" || f.Tag.Get("json") == "-" || (f.Anonymous && name == "" && indirect(f.Type).Kind() == reflect.Struct) {
			continue
		}
		if name == "" {
			name = f.Name
		}
		if old, ok := fields[name]; !ok || len(f.Index) < len(old.Index) {
			fields[name] = f
		}
	}
	return fields
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// fieldByIndex is Value.FieldByIndex, which makes embedded pointers on its way.
func fieldByIndex(v reflect.Value, index []int) reflect.Value {
	for _, i := range index {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = v.Field(i)
	}
	return v
}

func required(f reflect.StructField) bool {
	return slices.Contains(strings.Split(f.Tag.Get("jsonschema"), ","), "required")
}

func sortedNames(fields map[string]reflect.StructField) []string {
	names := make([]string, 0, len(fields))
	for n := range fields {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// pointer appends a key to a JSON pointer (RFC 6901).
func pointer(path, key string) string {
	return path + "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(text(key))
}

// nearest is the name that key was probably meant to be; "": none.
func nearest(key string, names []string) string {
	best, at := "", 1+max(len(key), 3)/3
	for _, n := range names {
		if strings.EqualFold(strings.ReplaceAll(key, "-", "_"), n) {
			return n
		}
		if dist := editDistance(key, n); dist < at || (dist == at && best == "") {
			best, at = n, dist
		}
	}
	return best
}

// editDistance is Levenshtein's. Keys are short; one that is not is not near to anything.
func editDistance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// decodeOpen decodes the configuration of an Open.
func decodeOpen[C any](spec Spec[C], data []byte) (C, error) {
	c, err := DecodeConfig(data, spec.Defaults)
	if err != nil {
		return c, Config(fmt.Errorf("configuration: %w", err)).WithCode(codeConfigInvalid)
	}
	return c, nil
}

const codeConfigInvalid = "config_invalid"

// checker makes the answer to Check.
func checker[C any](spec Spec[C]) func(context.Context, *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
	return func(ctx context.Context, r *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error) {
		c, err := DecodeConfig(r.GetConfig(), spec.Defaults)
		if err != nil {
			var resp pluginv1.CheckResponse
			for _, e := range flatten(err) {
				f := &pluginv1.Finding{Severity: pluginv1.Severity_SEVERITY_ERROR, Code: codeConfigInvalid, Message: text(e.Error())}
				if ce, ok := errors.AsType[*ConfigError](e); ok {
					f.Path, f.Message = text(ce.Path), text(ce.Message)
				}
				resp.Findings = append(resp.Findings, f)
			}
			return &resp, nil
		}
		if spec.Check == nil {
			return &pluginv1.CheckResponse{}, nil
		}
		cr := CheckRequest{Instance: instanceOf(r.GetInstance()), ConstantDestination: r.GetConstantDestination()}
		if p := r.GetPosition(); len(p) > 0 {
			cr.Position = p
		}
		findings, err := spec.Check(ctx, c, cr)
		if err != nil {
			return nil, checkError(err)
		}
		resp := &pluginv1.CheckResponse{Findings: make([]*pluginv1.Finding, len(findings))}
		for i, f := range findings {
			resp.Findings[i] = &pluginv1.Finding{
				Severity: pluginv1.Severity(f.Severity), //nolint:gosec // one of three
				Code:     text(f.Code),
				Path:     text(f.Path),
				Message:  text(f.Message),
				Hint:     text(f.Hint),
				Sql:      strings.ToValidUTF8(f.SQL, "\uFFFD"),
			}
		}
		return resp, nil
	}
}

// checkError says in gRPC's words why a check could not be made.
func checkError(err error) error {
	switch e := ErrorOf(err); {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return status.FromContextError(err).Err()
	case e.Class == ClassConfig:
		return status.Error(codes.FailedPrecondition, text(e.Error()))
	case e.Class == ClassPermanent:
		return status.Error(codes.Unknown, text(e.Error()))
	default:
		return status.Error(codes.Unavailable, text(e.Error()))
	}
}
