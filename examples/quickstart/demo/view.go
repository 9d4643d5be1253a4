package main

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
)

// view shows what happens: on a terminal a block of lines that is drawn over and over below the story so far, else a plain
// line now and then.
type view struct {
	live   bool
	colour bool
	events int
	began  time.Time
	drawn  int       // lines of the block on the screen
	last   time.Time // of the last plain line
}

// plainInterval is the time between two plain lines of figures.
const plainInterval = 2 * time.Second

func newView(events int) *view {
	tty := isatty.IsTerminal(os.Stdout.Fd()) && os.Getenv("TERM") != "dumb"
	return &view{live: tty, colour: tty && os.Getenv("NO_COLOR") == "", events: events, began: time.Now()}
}

// Styles.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	blue  = "36"
)

func (v *view) paint(style, text string) string {
	if !v.colour {
		return text
	}
	return "\x1b[" + style + "m" + text + "\x1b[0m"
}

// say adds a line to the story.
func (v *view) say(format string, args ...any) {
	v.erase()
	at := v.paint(dim, fmt.Sprintf("%5.1fs", time.Since(v.began).Seconds()))
	fmt.Printf("%s  %s\n", at, fmt.Sprintf(format, args...))
}

func (v *view) erase() {
	if v.drawn > 0 {
		fmt.Printf("\x1b[%dA\x1b[J", v.drawn)
		v.drawn = 0
	}
}

// show draws the figures.
func (v *view) show(c counts, relay string, relayUp bool) {
	if !v.live {
		if time.Since(v.last) < plainInterval {
			return
		}
		v.last = time.Now()
		v.say("committed %d, rolled back %d, in the outbox %d, shipping %d, e-mail %d; relay %s",
			c.committed, c.rolledBack, c.waiting, c.consumers["shipping"].handled, c.consumers["email"].handled, relay)
		return
	}
	style := green
	if !relayUp {
		style = red
	}
	lines := []string{
		"",
		v.row("order service", v.bar(c.committed, blue), fmt.Sprintf("%5d committed, %d rolled back", c.committed, c.rolledBack)),
		v.row("outbox", v.bar(c.waiting, red), fmt.Sprintf("%5d waiting", c.waiting)),
		v.row("relay", pad(v.paint(style, relay), relay), ""),
	}
	for _, con := range consumers {
		in := c.consumers[con.name]
		text := fmt.Sprintf("%5d handled, %d duplicates dropped", in.handled, in.duplicates)
		lines = append(lines, v.row(con.title, v.bar(in.handled, green), text))
	}
	v.erase()
	fmt.Println(strings.Join(lines, "\n"))
	v.drawn = len(lines)
}

const barWidth = 28

func (v *view) row(name, bar, text string) string {
	return fmt.Sprintf("  %s %s  %s", v.paint(bold, fmt.Sprintf("%-14s", name)), bar, text)
}

func (v *view) bar(n int, style string) string {
	full := min(barWidth, (n*barWidth+v.events-1)/v.events)
	return v.paint(style, strings.Repeat("█", full)) + v.paint(dim, strings.Repeat("░", barWidth-full))
}

// pad fills painted up to the width of a bar; plain is its text without colours.
func pad(painted, plain string) string {
	return painted + strings.Repeat(" ", max(0, barWidth-utf8.RuneCountInString(plain)))
}
