package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// parse reads the documents of a file that are not empty. A syntax error ends it: what stands before is returned.
func (f *file) parse(data []byte, env environment) []*value {
	if !f.checkText(data) {
		return nil
	}
	loader, err := yaml.NewLoader(bytes.NewReader(data), yaml.WithUniqueKeys(false))
	if err != nil {
		f.syntaxError(err)
		return nil
	}
	var docs []*value
	for {
		var n yaml.Node
		err := loader.Load(&n)
		if errors.Is(err, io.EOF) {
			return docs
		}
		if err != nil {
			f.syntaxError(err)
			return docs
		}
		if v := f.document(&n, env); v != nil && !v.isNull() {
			docs = append(docs, v)
		}
	}
}

// checkText finds what the YAML reader reports without a place, or takes for another encoding.
func (f *file) checkText(data []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(data); {
		r, n := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			f.report(place{line, column}, CodeNotUTF8, "save the file as UTF-8", "the file is not UTF-8 text")
			return false
		case r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0x7f:
			f.report(place{line, column}, CodeYAMLSyntax, `write it as an escape in double quotes: "\x00"`, "control character %U", r)
			return false
		}
		i += n
		column++
		switch r {
		case '\r':
			if i < len(data) && data[i] == '\n' {
				continue // one break with the next
			}
			fallthrough
		case '\n', 0x85, 0x2028, 0x2029:
			line, column = line+1, 1
		}
	}
	return true
}

func (f *file) syntaxError(err error) {
	le, ok := errors.AsType[*yaml.LoadError](err)
	if !ok {
		f.report(place{}, CodeYAMLSyntax, "", "not YAML: %s", MaskText(err.Error()))
		return
	}
	at := place{le.Mark.Line, le.Mark.Column}
	if at.line == 0 {
		at = place{le.ContextMark.Line, le.ContextMark.Column}
	}
	if strings.Contains(le.ContextMsg, "quoted scalar") && le.ContextMark.Line > 0 && strings.Contains(le.Message, "end of stream") {
		f.report(place{le.ContextMark.Line, le.ContextMark.Column}, CodeYAMLSyntax, "", "the quote that begins here is not closed")
		return
	}
	for _, t := range traps {
		if at, ok := t.applies(f, le, at); ok {
			f.report(at, t.code, t.hint, "%s", t.message)
			return
		}
	}
	message := le.Message
	if le.ContextMsg != "" {
		message += ", " + le.ContextMsg
		if le.ContextMark.Line > 0 && le.ContextMark.Line != at.line {
			message += " that begins in line " + strconv.Itoa(le.ContextMark.Line)
		}
	}
	f.report(at, CodeYAMLSyntax, "", "not YAML: %s", message)
}

// trap is a way in which YAML surprises, with a message of its own.
type trap struct {
	contains string         // in the parser's message or context
	line     *regexp.Regexp // on the line of the error, of its context, or between; its first group is the place
	code     string
	message  string
	hint     string
}

var traps = []trap{
	{
		line: regexp.MustCompile(`[{\[,][^'"#]*?(\$\{)`), contains: "while parsing a flow",
		code: CodeYAMLSyntax, message: `"${" inside { } or [ ] is YAML's own syntax`, hint: `quote it: "${VAR}"`,
	},
	{
		line: regexp.MustCompile(`:\s+(\{)[A-Za-z_.{}]+\}[^\s,}]`),
		code: CodeUnquotedPlaceholder, message: "a value that begins with { is a mapping in YAML, not text", hint: `quote it: "{type}-events"`,
	},
	{
		line: regexp.MustCompile(`:\s+[^'"\s{\[].*?(\$\{[^}]*: )`), contains: "mapping values are not allowed",
		code: CodeYAMLSyntax, message: `": " inside a value begins a mapping in YAML`, hint: `quote the value: "${VAR:?…}"`,
	},
	{
		line: regexp.MustCompile(`^\s*[^'"#]*?:\s+[^'"#]*?(: )`), contains: "mapping values are not allowed",
		code: CodeYAMLSyntax, message: `": " inside a value begins a mapping in YAML`, hint: "quote the value, or begin a new line after the first colon",
	},
	{
		line: regexp.MustCompile(`^ *(\t)`),
		code: CodeYAMLSyntax, message: "YAML does not allow tabs for indentation", hint: "indent with spaces",
	},
	{
		line: regexp.MustCompile("(?:[:\\[,-]\\s+)([@`%])"), contains: "cannot start any token",
		code: CodeYAMLSyntax, message: "a value cannot begin with this character in YAML", hint: "quote the value",
	},
	{
		line: regexp.MustCompile(`[:\[,-]\s+(\*)`), contains: "anchor",
		code: CodeYAMLSyntax, message: "a value that begins with * is an alias in YAML", hint: `quote the value: "*"`,
	},
	{
		line: regexp.MustCompile(`[:\[,-]\s+(\*)`), contains: "alias",
		code: CodeYAMLSyntax, message: "a value that begins with * is an alias in YAML", hint: `quote the value: "*"`,
	},
}

// applies looks for the trap on the lines that the parser names, the nearest to the error first.
func (t trap) applies(f *file, e *yaml.LoadError, at place) (place, bool) {
	if t.contains != "" && !strings.Contains(e.Message+" "+e.ContextMsg, t.contains) {
		return at, false
	}
	first := at.line - 1 // parsers notice late
	if e.ContextMark.Line > 0 && e.ContextMark.Line < first && strings.Contains(e.ContextMsg, "flow") {
		first = e.ContextMark.Line
	}
	for n := at.line; n >= max(1, first); n-- {
		text := f.line(n)
		if m := t.line.FindStringSubmatchIndex(text); m != nil {
			return place{n, 1 + len([]rune(text[:m[2]]))}, true
		}
	}
	return at, false
}
