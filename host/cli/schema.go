package cli

import (
	"context"
	"io"

	"github.com/relevo-io/relevo/host/config"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

type schemaCommand struct {
	hostFlags
	Settings bool `help:"Print the schema of the host settings (relevo.yaml) instead." xor:"what"`
	Markdown bool `help:"Print a reference for people, in Markdown, instead." xor:"what"`
}

// Help is shown by --help.
func (schemaCommand) Help() string {
	return `Prints one JSON Schema of a whole pipeline file, with the configuration of every plugin that is found. Editors complete and
check with it when a file begins with:
  # yaml-language-server: $schema=./relevo.schema.json

Example:
  relevo schema > relevo.schema.json`
}

// Run prints the schema. A plugin that cannot be described is left out, with a warning.
func (c *schemaCommand) Run(ctx context.Context, a *app) error {
	if c.Settings {
		_, err := io.WriteString(a.out, config.SettingsSchema())
		return err
	}
	s, err := c.settings(a)
	if err != nil {
		return err
	}
	var ds []*pluginv1.DescribeResponse
	for _, p := range describeAll(ctx, s.PluginDirs) {
		if p.err == nil {
			_, p.err = config.Schema([]*pluginv1.DescribeResponse{p.describe})
		}
		if p.err != nil {
			a.err.printf("%s left out: %s\n", a.err.paint(yellow, "warning:"), printable(p.err.Error()))
			continue
		}
		ds = append(ds, p.describe)
	}
	if ctx.Err() != nil {
		return shown(ExitFailed)
	}
	render := config.Schema
	if c.Markdown {
		render = config.Reference
	}
	text, err := render(ds)
	if err != nil {
		return err
	}
	_, err = a.out.Write(text)
	return err
}
