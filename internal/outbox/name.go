package outbox

import (
	"fmt"
	"strings"
)

// Name of a table. Schema "" means: wherever the search path finds it.
type Name struct{ Schema, Table string }

// ParseName reads `table` or `schema.table`. Names are taken exactly as written, upper and lower case included; double
// quotes are needed only around a name with a dot or a quote in it, as in SQL.
func ParseName(s string) (Name, error) {
	var parts []string
	for rest := s; ; {
		part, after, err := cutPart(rest)
		if err != nil || part == "" {
			return Name{}, fmt.Errorf("%q is not table or schema.table", s)
		}
		parts = append(parts, part)
		if after == "" {
			break
		}
		if after[0] != '.' {
			return Name{}, fmt.Errorf("%q is not table or schema.table", s)
		}
		rest = after[1:]
	}
	switch len(parts) {
	case 1:
		return Name{Table: parts[0]}, nil
	case 2:
		return Name{Schema: parts[0], Table: parts[1]}, nil
	}
	return Name{}, fmt.Errorf("%q is not table or schema.table", s)
}

// cutPart takes one name off the front of s.
func cutPart(s string) (part, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		if i := strings.IndexByte(s, '.'); i >= 0 {
			return s[:i], s[i:], nil
		}
		return s, "", nil
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] != '"':
			b.WriteByte(s[i])
		case i+1 < len(s) && s[i+1] == '"':
			b.WriteByte('"')
			i++
		default:
			return b.String(), s[i+1:], nil
		}
	}
	return "", "", fmt.Errorf("quote is not closed")
}

// String is the name as SQL.
func (n Name) String() string {
	if n.Schema == "" {
		return Quote(n.Table)
	}
	return Quote(n.Schema) + "." + Quote(n.Table)
}

// Quote makes an SQL identifier of a name.
func Quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// Literal makes an SQL string of a text.
func Literal(s string) string {
	s = strings.ReplaceAll(s, `'`, `''`)
	if strings.Contains(s, `\`) {
		return ` E'` + strings.ReplaceAll(s, `\`, `\\`) + `'`
	}
	return `'` + s + `'`
}

// AppendArray appends one element to an array in PostgreSQL's text form; start it with '{' and end it with '}'.
func AppendArray(dst, element []byte) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	dst = append(dst, '"')
	for _, c := range element {
		if c == '"' || c == '\\' {
			dst = append(dst, '\\')
		}
		dst = append(dst, c)
	}
	return append(dst, '"')
}
