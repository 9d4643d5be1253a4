package sdk

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

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
