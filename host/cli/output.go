package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
)

// Colours of a terminal.
const (
	bold   = "\x1b[1m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	dim    = "\x1b[2m"
	reset  = "\x1b[0m"
)

// app is what commands share.
type app struct {
	out, err *screen
}

func newApp(stdout, stderr io.Writer) *app {
	return &app{out: newScreen(stdout), err: newScreen(stderr)}
}

// screen is where output goes: a terminal with glyphs and perhaps colours, or plain words.
type screen struct {
	io.Writer
	terminal bool
	color    bool
}

// newScreen looks at what w is. NO_COLOR turns colours and glyphs off (https://no-color.org).
func newScreen(w io.Writer) *screen {
	f, ok := w.(interface{ Fd() uintptr })
	terminal := ok && isatty.IsTerminal(f.Fd()) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return &screen{Writer: w, terminal: terminal, color: terminal}
}

func (s *screen) paint(color, text string) string {
	if !s.color || color == "" || text == "" {
		return text
	}
	return color + text + reset
}

// printf prints; that a terminal or pipe has gone away can be told to nobody.
func (s *screen) printf(format string, a ...any) { _, _ = fmt.Fprintf(s, format, a...) }

// mark is a glyph on a terminal, else a word.
func (s *screen) mark(color, glyph, word string) string {
	if s.terminal {
		return s.paint(color, glyph)
	}
	return word
}

// json prints x, indented.
func (s *screen) json(x any) error {
	e := json.NewEncoder(s)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(x)
}

// table prints rows under a header, columns aligned, the last one as long as it is.
func (s *screen) table(header []string, rows [][]string) error {
	widths := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	line := func(row []string, color string) {
		for i, cell := range row {
			if i == len(row)-1 {
				b.WriteString(s.paint(color, cell))
				break
			}
			b.WriteString(s.paint(color, cell))
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		b.WriteByte('\n')
	}
	line(header, bold)
	for _, row := range rows {
		line(row, "")
	}
	_, err := io.WriteString(s, b.String())
	return err
}

// printable keeps what plugins and servers wrote from steering the terminal. Line breaks stay.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		if r == '\t' {
			return ' '
		}
		return utf8.RuneError
	}, s)
}

// plural is "1 pipeline", "2 pipelines".
func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// jsonLine is x on one line.
func jsonLine(x any) (string, error) {
	b, err := json.Marshal(x)
	if err != nil {
		return "", fmt.Errorf("encode result: %w", err)
	}
	return string(b), nil
}
