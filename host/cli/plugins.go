package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/relevo-io/relevo/host/config"
	"github.com/relevo-io/relevo/host/plugin"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

type pluginsCommand struct {
	List     pluginsListCommand     `cmd:"" help:"List the plugins that are found."`
	Describe pluginsDescribeCommand `cmd:"" help:"Show what a plugin is and how it is configured."`
	Test     pluginsTestCommand     `cmd:"" help:"Hold a plugin against the plugin protocol."`
}

// describedPlugin is a plugin that was found, and what it says of itself.
type describedPlugin struct {
	plugin.Found
	describe *pluginv1.DescribeResponse
	err      error
}

// describeAll finds every plugin and asks each what it is.
func describeAll(ctx context.Context, dirs []string) []*describedPlugin {
	var all []*describedPlugin
	var g errgroup.Group
	g.SetLimit(4)
	for _, f := range plugin.List(plugin.Dirs(dirs)) {
		p := &describedPlugin{Found: f}
		all = append(all, p)
		g.Go(func() error {
			p.describe, p.err = plugin.Describe(ctx, f.Path)
			return nil
		})
	}
	_ = g.Wait() // errors are kept beside each plugin
	return all
}

type pluginsListCommand struct {
	hostFlags
	JSON bool `name:"json" help:"Print the list as JSON."`
}

// Help is shown by --help.
func (pluginsListCommand) Help() string {
	return `A plugin is an executable source-NAME or sink-NAME in one of the directories: --plugin-dir, plugin_dirs of the settings,
$RELEVO_PLUGIN_PATH, beside relevo and in plugins/ there, /usr/lib/relevo/plugins. The first of a name wins.

Example:
  relevo plugins list`
}

// listedPlugin is a plugin as JSON.
type listedPlugin struct {
	Kind    plugin.Kind `json:"kind"`
	Name    string      `json:"name"`
	Path    string      `json:"path"`
	Version string      `json:"version,omitempty"`
	Summary string      `json:"summary,omitempty"`
	Error   string      `json:"error,omitempty"`
}

// Run lists the plugins.
func (c *pluginsListCommand) Run(ctx context.Context, a *app) error {
	s, err := c.settings(a)
	if err != nil {
		return err
	}
	list := []listedPlugin{}
	var rows [][]string
	for _, p := range describeAll(ctx, s.PluginDirs) {
		l := listedPlugin{Kind: p.Kind, Name: p.Name, Path: p.Path, Version: p.describe.GetVersion(), Summary: p.describe.GetSummary()}
		says := l.Summary
		if p.err != nil {
			l.Error = p.err.Error()
			says = "broken: " + l.Error
		}
		list = append(list, l)
		says, _, _ = strings.Cut(printable(says), "\n")
		rows = append(rows, []string{string(l.Kind), l.Name, printable(l.Version), l.Path, says})
	}
	if ctx.Err() != nil {
		return shown(ExitFailed)
	}
	if c.JSON {
		return a.out.json(list)
	}
	if len(list) == 0 {
		a.err.printf("No plugins in %s.\n", strings.Join(plugin.Dirs(s.PluginDirs), ", "))
		return nil
	}
	return a.out.table([]string{"KIND", "NAME", "VERSION", "PATH", "SUMMARY"}, rows)
}

type pluginsDescribeCommand struct {
	hostFlags
	Kind string `arg:"" help:"source or sink." enum:"source,sink"`
	Name string `arg:"" help:"Name of the plugin, as in a pipeline file."`
	JSON bool   `name:"json" help:"Print the description, with the JSON Schema of the configuration, as JSON."`
}

// Help is shown by --help.
func (pluginsDescribeCommand) Help() string {
	return `Shows the plugin's version and capabilities, and every key of its config with type, default and meaning.

Example:
  relevo plugins describe sink nats`
}

// Run describes the plugin.
func (c *pluginsDescribeCommand) Run(ctx context.Context, a *app) error {
	s, err := c.settings(a)
	if err != nil {
		return err
	}
	found, err := plugin.Find(plugin.Dirs(s.PluginDirs), plugin.Kind(c.Kind), c.Name)
	if err != nil {
		return environment(err)
	}
	d, err := plugin.Describe(ctx, found.Path)
	if err != nil {
		return environment(err)
	}
	if c.JSON {
		return printDescription(a, found, d)
	}
	keys, err := config.Keys(d.GetConfigSchema())
	if err != nil {
		return environment(fmt.Errorf("plugin %s: %w", found.Path, err))
	}
	return c.print(a, found, d, keys)
}

// printDescription prints the protocol's own JSON, the schema as an object in it.
func printDescription(a *app, found plugin.Found, d *pluginv1.DescribeResponse) error {
	b, err := protojson.Marshal(d)
	if err != nil {
		return fmt.Errorf("encode description: %w", err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("encode description: %w", err)
	}
	var schema any
	if json.Unmarshal([]byte(d.GetConfigSchema()), &schema) == nil {
		m["configSchema"] = schema
	}
	m["path"] = found.Path
	return a.out.json(m)
}

func (*pluginsDescribeCommand) print(a *app, found plugin.Found, d *pluginv1.DescribeResponse, keys []config.Key) error {
	a.out.printf("%s %s %s\n", a.out.paint(bold, fmt.Sprintf("%s %s", found.Kind, d.GetName())), printable(d.GetVersion()), a.out.paint(dim, found.Path))
	if d.GetSummary() != "" {
		a.out.printf("%s\n", printable(d.GetSummary()))
	}
	for _, line := range capabilities(d) {
		a.out.printf("  %s\n", line)
	}
	if len(keys) == 0 {
		a.out.printf("\nIt has no configuration.\n")
		return nil
	}
	a.out.printf("\n%s\n", a.out.paint(bold, "config"))
	for _, k := range keys {
		notes := []string{k.Type}
		switch {
		case k.Required:
			notes = append(notes, "required")
		case k.Default != "" && !strings.Contains(k.Description, "Defaults to"):
			notes = append(notes, "default "+k.Default)
		}
		if k.Secret {
			notes = append(notes, "secret")
		}
		a.out.printf("  %s  %s\n", a.out.paint(bold, printable(k.Path)), a.out.paint(dim, printable(strings.Join(notes, ", "))))
		if k.Description != "" {
			a.out.printf("      %s\n", printable(strings.ReplaceAll(k.Description, "\n", " ")))
		}
	}
	return nil
}

// capabilities says in words what the protocol has as flags.
func capabilities(d *pluginv1.DescribeResponse) []string {
	var lines []string
	add := func(is bool, text string) {
		if is {
			lines = append(lines, text)
		}
	}
	c := d.GetCapabilities()
	add(c.GetHasPositions(), "keeps positions: the host stores where it is")
	add(c.GetHoldsKeys(), "holds keys: a key that fails leaves the others alone")
	add(c.GetKeepsOrder(), "keeps order: may be given several events of one key at once")
	if t := d.GetDestination(); t != nil {
		text := "destination (to): " + t.GetNoun()
		if t.GetMaxBytes() > 0 {
			text += fmt.Sprintf(", at most %d bytes", t.GetMaxBytes())
		}
		if t.GetForbidden() != "" {
			text += ", an event's field may not hold " + t.GetForbidden()
		}
		lines = append(lines, printable(text))
	}
	return lines
}
