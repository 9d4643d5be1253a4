package deploy

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/host/pipeline"
)

const manual = "../docs/operating.md"

// page is docs/operating.md: what it explains and where.
type page struct {
	headings []string
	rows     map[string][]string // by the heading of second level: what stands in code font in the first cell of each row
}

var inCodeFont = regexp.MustCompile("`([^`]+)`")

var notInAnchors = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// anchors are what GitHub makes of the headings, for links.
func (p page) anchors() map[string]bool {
	all := map[string]bool{}
	for _, h := range p.headings {
		all[strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(h), ""), " ", "-")] = true
	}
	return all
}

func readManual(t *testing.T) page {
	t.Helper()
	text, err := os.ReadFile(manual)
	require.NoError(t, err)
	p := page{rows: map[string][]string{}}
	section, fenced := "", false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if fenced {
			continue
		}
		if hashes, heading, ok := strings.Cut(line, " "); ok && strings.Trim(hashes, "#") == "" {
			p.headings = append(p.headings, heading)
			if hashes == "##" {
				section = heading
			}
		}
		if cell, ok := strings.CutPrefix(line, "|"); ok {
			cell, _, _ = strings.Cut(cell, "|")
			for _, m := range inCodeFont.FindAllStringSubmatch(cell, -1) {
				p.rows[section] = append(p.rows[section], m[1])
			}
		}
	}
	return p
}

// TestManualHasEveryState: each state of a pipeline has its own chapter.
func TestManualHasEveryState(t *testing.T) {
	t.Parallel()
	p := readManual(t)
	for _, s := range pipeline.States {
		require.Contains(t, p.headings, string(s), "give the state a chapter (### %s) under \"States\" in docs/operating.md", s)
	}
}

// TestManualHasEveryMetric, and none that is no more.
func TestManualHasEveryMetric(t *testing.T) {
	t.Parallel()
	agree(t, readManual(t).rows["Metrics"], parseSource(t).metrics(t), "metric", "Metrics")
}

// TestManualHasEveryCode, and none that is no more.
func TestManualHasEveryCode(t *testing.T) {
	t.Parallel()
	agree(t, readManual(t).rows["Codes"], parseSource(t).codes(), "code", "Codes")
}

var link = regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]*))?\)`)

// TestManualLeadsSomewhere: every chapter and file that it points at is there.
func TestManualLeadsSomewhere(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(manual)
	require.NoError(t, err)
	anchors := readManual(t).anchors()
	for _, m := range link.FindAllStringSubmatch(string(text), -1) {
		file, place := m[1], m[2]
		switch {
		case strings.Contains(file, "://"):
		case file != "":
			require.FileExists(t, filepath.Join(filepath.Dir(manual), file), m[0])
		default:
			require.True(t, anchors[place], "%s leads nowhere", m[0])
		}
	}
}

// agree compares what the manual explains in the tables of a section with what is in the code.
func agree(t *testing.T, explained []string, said map[string]string, what, section string) {
	t.Helper()
	require.NotEmpty(t, explained, "docs/operating.md has no section %q", section)
	known := map[string]bool{}
	for _, x := range explained {
		known[x] = true
		if _, ok := said[x]; !ok {
			t.Errorf("docs/operating.md explains the %s `%s`, which nothing reports: take its row out", what, x)
		}
	}
	for x, where := range said {
		if !known[x] {
			t.Errorf("%s reports the %s `%s`: explain it with a row \"| `%s` | cause | action |\" under \"%s\" in docs/operating.md",
				where, what, x, x, section)
		}
	}
}

// TestSourceIsUnderstood: what the tests above look for is found in each of the ways in which the code says it.
func TestSourceIsUnderstood(t *testing.T) {
	t.Parallel()
	s := parseSource(t)
	codes, metrics := s.codes(), s.metrics(t)
	for _, c := range []string{
		"login_refused",     // .WithCode("…")
		"table_missing",     // Code: "…"
		"max_payload_small", // a parameter called code
		"id_null",           // a constant CodeX
		"store_failed",      // x.code = "…"
		"tls_required",      // a parameter of a function in a variable
		"crashes_sink",      // a parameter of a method
		"id_too_long",       // in a package that plugins share
		"sql_…",             // put together
	} {
		require.Contains(t, codes, c)
	}
	require.NotContains(t, codes, "57014", "the SQLSTATE of the driver is no code of ours")
	for _, m := range []string{
		"relevo_pipeline_state",
		"relevo_plugin_rows_deleted_total", // through a field
		"relevo_plugin_duplicates_total",
	} {
		require.Contains(t, metrics, m)
	}
}
