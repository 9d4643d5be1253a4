package config

import (
	"fmt"
	"regexp"
	"strings"
)

// place is where something stands in a file: line, and column in characters, both from 1. Line 0 is the whole file.
type place struct{ line, column int }

// file is one YAML file while it is read: its text, and the faults found in it.
type file struct {
	path    string
	lines   []string
	faults  Diagnostics
	secrets []span
}

// span is a scalar that may not be shown: from its place to the end of its last line.
type span struct {
	from    place
	endLine int
}

// lineBreak is what the YAML reader counts as one.
var lineBreak = regexp.MustCompile("\r\n|[\n\r\u0085\u2028\u2029]")

func newFile(path string, data []byte) *file {
	return &file{path: path, lines: lineBreak.Split(strings.TrimPrefix(string(data), "\ufeff"), -1)}
}

// line is the text of a line, "" if there is none.
func (f *file) line(n int) string {
	if n < 1 || n > len(f.lines) {
		return ""
	}
	return f.lines[n-1]
}

func (f *file) report(at place, code, hint, format string, a ...any) {
	f.faults = append(f.faults, Diagnostic{
		File: f.path, Line: at.line, Column: at.column, Code: code, Message: fmt.Sprintf(format, a...), Hint: hint,
	})
}

// diagnostics are the faults, each with its source line; only now are all secrets known.
func (f *file) diagnostics() Diagnostics {
	for i := range f.faults {
		f.faults[i].source = f.masked(f.faults[i].Line)
	}
	return f.faults
}

// hide keeps a scalar, or all in a mapping or list, out of source lines that are shown.
func (f *file) hide(v *value) {
	switch {
	case v == nil:
	case v.kind == scalar:
		f.secrets = append(f.secrets, span{from: v.place, endLine: v.endLine})
	default:
		v.each(func(c *value) { f.hide(c) })
	}
}

const mask = "***"

// masked is a line that may be shown (I9).
func (f *file) masked(n int) string {
	rs := []rune(f.line(n))
	for _, s := range f.secrets {
		switch {
		case n == s.from.line && s.from.column-1 < len(rs):
			rs = append(rs[:s.from.column-1:s.from.column-1], []rune(mask)...)
		case n > s.from.line && n <= s.endLine:
			return strings.Repeat(" ", len(rs)-len([]rune(strings.TrimLeft(string(rs), " \t")))) + mask
		}
	}
	return MaskText(string(rs))
}

var (
	urlPassword = regexp.MustCompile(`(://[^/?#\s:@"']*:)[^\s"'/]*@`)
	looksSecret = regexp.MustCompile(`(?i)((?:password|passwd|passphrase|secret|token|nkey|seed|creds|credentials|private_key)["']?\s*[:=]\s*)[^\s].*`)
)

// MaskText hides what looks like a password in text that no schema describes: the one in a URL, and what follows a key
// such as password or token.
func MaskText(s string) string {
	s = urlPassword.ReplaceAllString(s, "${1}"+mask+"@")
	return looksSecret.ReplaceAllStringFunc(s, func(m string) string {
		at := looksSecret.FindStringSubmatchIndex(m)
		head, tail := m[:at[3]], m[at[3]:]
		if strings.HasPrefix(strings.TrimLeft(tail, `"'`), "${") && !strings.Contains(tail, ":-") {
			return m // a reference is no secret
		}
		return head + mask
	})
}
