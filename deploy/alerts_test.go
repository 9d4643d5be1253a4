package deploy

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/relevo-io/relevo/internal/pgtest/pgenv"
	"github.com/relevo-io/relevo/test/services/bring"
)

// rule of Prometheus, as far as we use them.
type rule struct {
	Alert       string            `yaml:"alert,omitempty"`
	Record      string            `yaml:"record,omitempty"`
	Expr        string            `yaml:"expr"`
	For         string            `yaml:"for,omitempty"`
	Labels      map[string]string `yaml:"labels,omitempty"`
	Annotations map[string]string `yaml:"annotations,omitempty"`
}

type group struct {
	Name  string `yaml:"name"`
	Rules []rule `yaml:"rules"`
}

type ruleFile struct {
	Groups []group `yaml:"groups"`
}

func alerts(t *testing.T) (all []rule) {
	t.Helper()
	text, err := os.ReadFile("prometheus/alerts.yaml")
	require.NoError(t, err)
	var f ruleFile
	require.NoError(t, yaml.Unmarshal(text, &f))
	for _, g := range f.Groups {
		all = append(all, g.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// promtool runs Prometheus's own judge. Without it the test is skipped, and fails where everything must run.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := bring.FindPromtool()
	if err != nil {
		if os.Getenv(pgenv.Require) != "" {
			t.Fatalf("no promtool here: %v", err)
		}
		t.Skip("no promtool here: go run ./test/services -- true gets it, or set " + bring.PromtoolVariable)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = "prometheus"
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "promtool %s\n%s", strings.Join(args, " "), out)
}

// TestAlertsComeAndStayAway: the rules are valid, and do in time what alerts_test.yaml says.
func TestAlertsComeAndStayAway(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint-fatal", "alerts.yaml")
	promtool(t, "test", "rules", "alerts_test.yaml")
}

// TestEveryAlertIsTested both ways.
func TestEveryAlertIsTested(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("prometheus/alerts_test.yaml")
	require.NoError(t, err)
	var f struct {
		Tests []struct {
			Alerts []struct {
				Alert string `yaml:"alertname"`
				Exp   []any  `yaml:"exp_alerts"`
			} `yaml:"alert_rule_test"`
		} `yaml:"tests"`
	}
	require.NoError(t, yaml.Unmarshal(text, &f))
	comes, stays := map[string]bool{}, map[string]bool{}
	for _, c := range f.Tests {
		for _, a := range c.Alerts {
			comes[a.Alert] = comes[a.Alert] || len(a.Exp) > 0
			stays[a.Alert] = stays[a.Alert] || len(a.Exp) == 0
		}
	}
	for _, r := range alerts(t) {
		require.True(t, comes[r.Alert], "alerts_test.yaml never expects %s", r.Alert)
		require.True(t, stays[r.Alert], "alerts_test.yaml never expects %s to stay away", r.Alert)
	}
}

// TestAlertsHelpAPerson: each says how bad it is, what it is, and where the manual says what to do.
func TestAlertsHelpAPerson(t *testing.T) {
	t.Parallel()
	const runbook = "https://github.com/relevo-io/relevo/blob/main/docs/operating.md#"
	anchors := readManual(t).anchors()
	seen := map[string]bool{}
	for _, r := range alerts(t) {
		require.False(t, seen[r.Alert], "two alerts are called %s", r.Alert)
		seen[r.Alert] = true
		require.Contains(t, []string{"page", "ticket"}, r.Labels["severity"], r.Alert)
		require.NotEmpty(t, r.Annotations["summary"], r.Alert)
		require.NotEmpty(t, r.Annotations["description"], r.Alert)
		place, ok := strings.CutPrefix(r.Annotations["runbook_url"], runbook)
		require.True(t, ok, "%s has no runbook_url in the manual", r.Alert)
		require.True(t, anchors[place], "%s points at #%s, and docs/operating.md has no such heading", r.Alert, place)
	}
}

func TestAlertsReadMetricsThatExist(t *testing.T) {
	t.Parallel()
	known := parseSource(t).metrics(t)
	for _, r := range alerts(t) {
		requireMetrics(t, known, r.Alert, r.Expr)
	}
}

var (
	inQuotes   = regexp.MustCompile(`"[^"]*"`)
	metricName = regexp.MustCompile(`\b(relevo|process|go)_[a-z0-9_]+`)
	histogram  = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// requireMetrics looks for every metric of an expression in the code. Those of the process are Prometheus's own client's.
func requireMetrics(t *testing.T, known map[string]string, who, expr string) {
	t.Helper()
	names := metricName.FindAllString(inQuotes.ReplaceAllString(expr, `""`), -1)
	for _, name := range names {
		if !strings.HasPrefix(name, "relevo_") {
			require.Contains(t, []string{"process_resident_memory_bytes", "process_cpu_seconds_total"}, name, "%s reads %s", who, name)
			continue
		}
		if _, ok := known[name]; !ok {
			require.Contains(t, known, histogram.ReplaceAllString(name, ""), "%s reads %s, which nothing reports", who, name)
		}
	}
}

// TestReadmeListsEveryAlert under its severity.
func TestReadmeListsEveryAlert(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	rows := map[string]string{}
	for line := range strings.Lines(string(text)) {
		for _, severity := range []string{"page", "ticket"} {
			if strings.HasPrefix(line, "| `"+severity+"` |") {
				rows[severity] = line
			}
		}
	}
	for _, r := range alerts(t) {
		require.Regexp(t, `\b`+r.Alert+`\b`, rows[r.Labels["severity"]])
	}
}
