package deploy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/relevo-io/relevo/host/pipeline"
)

// dashboard of Grafana, as far as the tests look at it.
type dashboard struct {
	Schema     int `json:"schemaVersion"`
	Templating struct {
		List []struct {
			Name  string `json:"name"`
			Type  string `json:"type"`
			Query any    `json:"query"`
		} `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID      int    `json:"id"`
	Type    string `json:"type"`
	Title   string `json:"title"`
	Grid    grid   `json:"gridPos"`
	Targets []struct {
		Expr  string `json:"expr"`
		RefID string `json:"refId"`
	} `json:"targets"`
}

type grid struct{ X, Y, W, H int }

func readDashboard(t *testing.T) dashboard {
	t.Helper()
	text, err := os.ReadFile("grafana/relevo.json")
	require.NoError(t, err)
	var d dashboard
	require.NoError(t, json.Unmarshal(text, &d))
	require.NotEmpty(t, d.Panels)
	return d
}

// TestDashboardFits: panels have ids of their own and do not lie on each other, in Grafana's 24 columns.
func TestDashboardFits(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	require.GreaterOrEqual(t, d.Schema, 39, "of Grafana 10.4")
	ids, at := map[int]string{}, map[[2]int]string{}
	for _, p := range d.Panels {
		require.NotContains(t, ids, p.ID, p.Title)
		ids[p.ID] = p.Title
		require.LessOrEqual(t, p.Grid.X+p.Grid.W, 24, p.Title)
		for x := p.Grid.X; x < p.Grid.X+p.Grid.W; x++ {
			for y := p.Grid.Y; y < p.Grid.Y+p.Grid.H; y++ {
				require.NotContains(t, at, [2]int{x, y}, "%s lies on %s", p.Title, at[[2]int{x, y}])
				at[[2]int{x, y}] = p.Title
			}
		}
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
	}
}

// TestDashboardReadsMetricsThatExist, and knows every state.
func TestDashboardReadsMetricsThatExist(t *testing.T) {
	t.Parallel()
	known := parseSource(t).metrics(t)
	var all strings.Builder
	for _, p := range readDashboard(t).Panels {
		for _, q := range p.Targets {
			requireMetrics(t, known, p.Title, q.Expr)
			all.WriteString(q.Expr)
		}
	}
	for _, s := range pipeline.States {
		require.Contains(t, all.String(), `state="`+string(s)+`"`)
	}
}

// inDashboard is a variable of the dashboard, or of Grafana, where no text is quoted.
var inDashboard = regexp.MustCompile(`\$(__rate_interval|[a-z_]+)`)

// TestDashboardAsks what Prometheus understands: each expression is made a rule, which promtool reads.
func TestDashboardAsks(t *testing.T) {
	t.Parallel()
	d := readDashboard(t)
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	var g group
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			expr := inDashboard.ReplaceAllStringFunc(q.Expr, func(v string) string {
				require.True(t, variables[v[1:]], "%s: there is no variable %s", p.Title, v)
				if v == "$__rate_interval" {
					return "1m"
				}
				return "1"
			})
			// The label keeps rules apart, which must not be the same.
			g.Rules = append(g.Rules, rule{
				Record: "dashboard:query", Expr: expr, Labels: map[string]string{"panel": fmt.Sprint(p.ID, q.RefID)},
			})
		}
	}
	g.Name = "dashboard"
	text, err := yaml.Marshal(ruleFile{Groups: []group{g}})
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "dashboard.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	promtool(t, "check", "rules", "--lint-fatal", file)
}
