package outbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
)

// The documents below come from json and jsonb columns, or have passed json.Valid: the scanner relies on that, and only
// promises not to panic on anything else.

var errJSON = errors.New("not a JSON document")

func skipSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\n' || b[0] == '\t' || b[0] == '\r') {
		b = b[1:]
	}
	return b
}

// cutValue takes one value off the front of b, which starts with it.
func cutValue(b []byte) (value, rest []byte, err error) {
	if len(b) == 0 {
		return nil, nil, errJSON
	}
	switch b[0] {
	case '"':
		for i := 1; i < len(b); i++ {
			switch b[i] {
			case '\\':
				i++
			case '"':
				return b[:i+1], b[i+1:], nil
			}
		}
		return nil, nil, errJSON
	case '{', '[':
		depth := 0
		for i := 0; i < len(b); i++ {
			switch b[i] {
			case '"':
				s, _, err := cutValue(b[i:])
				if err != nil {
					return nil, nil, err
				}
				i += len(s) - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return b[:i+1], b[i+1:], nil
				}
			}
		}
		return nil, nil, errJSON
	}
	n := bytes.IndexAny(b, ",]} \n\t\r:")
	if n < 0 {
		n = len(b)
	}
	if n == 0 {
		return nil, nil, errJSON
	}
	return b[:n], b[n:], nil
}

// eachMember calls f for the members of an object, whose names are still quoted, or for the elements of an array, whose
// names are nil, until f returns false.
func eachMember(doc []byte, f func(name, value []byte) bool) error {
	doc = skipSpace(doc)
	if len(doc) < 2 || (doc[0] != '{' && doc[0] != '[') {
		return errJSON
	}
	object, end := doc[0] == '{', doc[0]+2 // '}' and ']' stand two behind their opening
	b := skipSpace(doc[1:])
	if len(b) > 0 && b[0] == end {
		return nil
	}
	for {
		var name, value []byte
		var err error
		if object {
			if name, b, err = cutValue(b); err != nil {
				return err
			}
			if b = skipSpace(b); name[0] != '"' || len(b) == 0 || b[0] != ':' {
				return errJSON
			}
			b = skipSpace(b[1:])
		}
		if value, b, err = cutValue(b); err != nil {
			return err
		}
		if !f(name, value) {
			return nil
		}
		if b = skipSpace(b); len(b) == 0 {
			return errJSON
		}
		if b[0] == end {
			return nil
		}
		if b[0] != ',' {
			return errJSON
		}
		b = skipSpace(b[1:])
	}
}

// lookUp follows a JSON pointer; nil: nothing is there. As in jsonb, the last of members with one name counts.
func lookUp(doc []byte, path []string) ([]byte, error) {
	doc = bytes.TrimRight(skipSpace(doc), " \n\t\r")
	for _, p := range path {
		if len(doc) == 0 || (doc[0] != '{' && doc[0] != '[') {
			return nil, nil
		}
		index := -1
		if doc[0] == '[' {
			n, err := strconv.ParseUint(p, 10, 31)
			if err != nil {
				return nil, nil
			}
			index = int(n)
		}
		var found []byte
		i := 0
		err := eachMember(doc, func(name, value []byte) bool {
			if name == nil {
				if i == index {
					found = value
				}
				i++
				return found == nil
			}
			if isName(name, p) {
				found = value
			}
			return true
		})
		if err != nil || found == nil {
			return nil, err
		}
		doc = found
	}
	return doc, nil
}

func isName(quoted []byte, name string) bool {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1:len(quoted)-1]) == name
	}
	s, err := unquote(quoted)
	return err == nil && string(s) == name
}

// plain is a value as text: a string without its quotes, null as nil, everything else as it is written.
func plain(value []byte) ([]byte, error) {
	switch {
	case len(value) == 0:
		return nil, errJSON
	case value[0] == '"':
		return unquote(value)
	case string(value) == "null":
		return nil, nil
	}
	return value, nil
}

func unquote(quoted []byte) ([]byte, error) {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1 : len(quoted)-1], nil
	}
	var s string
	if err := json.Unmarshal(quoted, &s); err != nil {
		return nil, errJSON
	}
	return []byte(s), nil
}
