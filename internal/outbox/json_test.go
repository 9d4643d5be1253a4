package outbox

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLookUp(t *testing.T) {
	t.Parallel()
	const doc = ` {"a": {"b": [1, {"c/d": "x\"y"}], "": true}, "n": null, "a2": "}", "é": 1, "dup": 1, "dup": 2} `
	for path, want := range map[string]string{
		"a/b/0":      "1",
		"a/b/1/c~d":  `"x\"y"`,
		"a/":         "true",
		"n":          "null",
		"a2":         `"}"`,
		"é":          "1",
		"dup":        "2",
		"a/b/2":      "",
		"a/b/x":      "",
		"a/b/-1":     "",
		"missing":    "",
		"n/deeper":   "",
		"a2/deeper":  "",
		"a/b/0/deep": "",
	} {
		p := strings.Split(path, "/")
		for i := range p {
			p[i] = strings.ReplaceAll(p[i], "~", "/")
		}
		got, err := lookUp([]byte(doc), p)
		require.NoError(t, err, path)
		require.Equal(t, want, string(got), path)
	}
}

// The scanner agrees with encoding/json on every valid document, and survives every other.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{}`, `[]`, `{"a":1}`, ` [ 1 , "x" , {"y":[null]} ] `, `{"a\u0062":"\n"}`, `{"a":{"b":"}"}}`, `{"a"`, `[1`, `{"\`, `{"a":"é"}`, `{"":""}`} {
		f.Add([]byte(s), "a")
	}
	f.Fuzz(func(t *testing.T, doc []byte, name string) {
		n := 0
		err := eachMember(doc, func(name, value []byte) bool {
			n++
			_, _ = plain(value)
			if name != nil {
				_, _ = unquote(name)
			}
			return true
		})
		_, _ = lookUp(doc, []string{name, "0", name})
		if !json.Valid(doc) {
			return
		}
		switch trimmed := bytes.TrimLeft(doc, " \t\r\n"); trimmed[0] {
		case '[':
			var want []json.RawMessage
			require.NoError(t, json.Unmarshal(doc, &want))
			require.NoError(t, err)
			require.Len(t, want, n)
		case '{':
			var want map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(doc, &want))
			require.NoError(t, err)
			require.GreaterOrEqual(t, n, len(want))
			got, err := lookUp(doc, []string{name})
			require.NoError(t, err)
			if w, ok := want[name]; ok {
				require.Equal(t, string(w), string(got))
			} else {
				require.Nil(t, got)
			}
		default:
			require.Error(t, err)
		}
	})
}
