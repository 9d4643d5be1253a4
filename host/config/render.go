package config

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxPrinted = 20  // diagnostics
	maxSnippet = 120 // characters of a source line
)

// Colours of a terminal.
const (
	ansiBold  = "\x1b[1m"
	ansiRed   = "\x1b[1;31m"
	ansiCyan  = "\x1b[36m"
	ansiDim   = "\x1b[2m"
	ansiReset = "\x1b[0m"
)

// Print writes the first 20 for people: place, message and code, the source line with a caret, and the hint. color is for
// terminals.
func (ds Diagnostics) Print(w io.Writer, color bool) error {
	p := painter(color)
	var b strings.Builder
	for i, d := range ds {
		if i == maxPrinted {
			fmt.Fprintf(&b, "and %d more\n", len(ds)-i)
			break
		}
		d.print(&b, p)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

type painter bool

func (p painter) paint(code, s string) string {
	if !p || s == "" {
		return s
	}
	return code + s + ansiReset
}

func (d Diagnostic) print(b *strings.Builder, p painter) {
	fmt.Fprintf(b, "%s%s %s %s\n", p.paint(ansiBold, d.place()), p.paint(ansiRed, "error:"), d.Message, p.paint(ansiDim, "["+d.Code+"]"))
	gutter := "   "
	if strings.TrimSpace(d.source) != "" {
		line, caret := snippet(d.source, d.Column)
		number := fmt.Sprintf("%4d", d.Line)
		gutter = strings.Repeat(" ", len(number))
		fmt.Fprintf(b, "%s %s\n", p.paint(ansiDim, number+" |"), line)
		if caret != "" {
			fmt.Fprintf(b, "%s %s\n", p.paint(ansiDim, gutter+" |"), p.paint(ansiRed, caret))
		}
	}
	if d.Hint != "" {
		fmt.Fprintf(b, "%s %s\n", p.paint(ansiDim, gutter+" ="), p.paint(ansiCyan, d.Hint))
	}
}

// snippet cuts a source line to what fits, and makes the line with the caret below it. Tabs are kept in both, so that
// they are aligned whatever a tab's width is. column counts characters from 1.
func snippet(source string, column int) (line, caret string) {
	rs := []rune(source)
	at := column - 1
	head := ""
	if len(rs) > maxSnippet {
		from := max(0, min(at-maxSnippet/2, len(rs)-maxSnippet))
		rs, at = rs[from:from+maxSnippet], at-from
		if from > 0 {
			head = "…"
		}
	}
	for i, r := range rs {
		if r != '\t' && (!unicode.IsPrint(r) || r == utf8.RuneError) {
			rs[i] = utf8.RuneError // nothing that a terminal would obey
		}
	}
	line = head + string(rs)
	if at < 0 || at > len(rs) {
		return line, "" // behind something masked
	}
	var b strings.Builder
	b.WriteString(strings.Repeat(" ", utf8.RuneCountInString(head)))
	for _, r := range rs[:at] {
		if r == '\t' {
			b.WriteByte('\t')
		} else {
			b.WriteByte(' ')
		}
	}
	b.WriteByte('^')
	return line, b.String()
}
