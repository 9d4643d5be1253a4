package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/relevo-io/relevo/host/plugin"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// maxFile bounds a pipeline file.
const maxFile = 4 << 20

// DescribeFunc finds a plugin and asks what it is. A zero Found with an error: there is none.
type DescribeFunc func(ctx context.Context, kind plugin.Kind, name string) (plugin.Found, *pluginv1.DescribeResponse, error)

// Options of Load.
type Options struct {
	// PluginDirs are searched first for plugins.
	PluginDirs []string
	// AllowMissingEnv tolerates ${…} that is not there: the value is then not checked, and the pipeline is not fit to run.
	AllowMissingEnv bool
	// LookupEnv defaults to os.LookupEnv.
	LookupEnv func(string) (string, bool)
	// Describe defaults to plugin.Find and plugin.Describe. It is called once per plugin, several at a time.
	Describe DescribeFunc
}

// Load reads the pipelines in files and directories (*.yaml and *.yml; not recursive, no dot files, not relevo.yaml) and
// reports all that is wrong with any of them. The pipelines returned are those without a fault.
func Load(ctx context.Context, paths []string, o Options) ([]*Pipeline, Diagnostics) {
	if o.LookupEnv == nil {
		o.LookupEnv = os.LookupEnv
	}
	if o.Describe == nil {
		o.Describe = describer(o.PluginDirs)
	}
	env := environment{lookup: o.LookupEnv, allowMissing: o.AllowMissingEnv}
	names, faults := expandPaths(paths)
	var (
		files []*file
		docs  []*document
	)
	for _, name := range names {
		f, ds := loadFile(name, env)
		files = append(files, f)
		docs = append(docs, ds...)
	}
	plugins := describeAll(ctx, docs, o.Describe)
	var loaded []*document
	for _, d := range docs {
		d.build(plugins)
		if d.pipeline != nil {
			loaded = append(loaded, d)
		}
	}
	acrossPipelines(docs)
	var pipelines []*Pipeline
	for _, d := range loaded {
		if d.ok {
			pipelines = append(pipelines, d.pipeline)
		}
	}
	for _, f := range files {
		faults = append(faults, f.diagnostics()...)
	}
	return pipelines, faults.sorted()
}

// describer looks plugins up on this machine.
func describer(dirs []string) DescribeFunc {
	return func(ctx context.Context, kind plugin.Kind, name string) (plugin.Found, *pluginv1.DescribeResponse, error) {
		found, err := plugin.Find(plugin.Dirs(dirs), kind, name)
		if err != nil {
			return plugin.Found{}, nil, err
		}
		d, err := plugin.Describe(ctx, found.Path)
		return found, d, err
	}
}

// expandPaths lists the files, each once, in the order given and by name within a directory.
func expandPaths(paths []string) (files []string, faults Diagnostics) {
	bad := func(path, code, hint, format string, a ...any) {
		faults = append(faults, Diagnostic{File: path, Code: code, Message: fmt.Sprintf(format, a...), Hint: hint})
	}
	seen := map[string]bool{}
	add := func(path string) {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			real = filepath.Clean(path)
		}
		if !seen[real] {
			seen[real] = true
			files = append(files, path)
		}
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case err != nil:
			bad(path, CodeFileUnreadable, "", "cannot read: %s", reason(err))
			continue
		case !info.IsDir():
			add(path)
			continue
		}
		entries, err := os.ReadDir(path)
		if err != nil {
			bad(path, CodeFileUnreadable, "", "cannot read: %s", reason(err))
			continue
		}
		n := 0
		for _, e := range entries {
			if !isPipelineFile(e.Name()) {
				continue
			}
			// Stat, not the entry: a mounted ConfigMap is made of symbolic links.
			p := filepath.Join(path, e.Name())
			if info, err := os.Stat(p); err == nil && info.IsDir() {
				continue
			}
			add(p)
			n++
		}
		if n == 0 {
			bad(path, CodeNoPipelines, "", "the directory holds no pipeline files (*.yaml, *.yml)")
		}
	}
	return files, faults
}

func isPipelineFile(name string) bool {
	ext := filepath.Ext(name)
	return (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(name, ".") && strings.TrimSuffix(name, ext) != "relevo"
}

// loadFile reads one file into its documents.
func loadFile(path string, env environment) (*file, []*document) {
	data, err := readFile(path)
	f := newFile(path, data)
	if err != nil {
		f.report(place{}, CodeFileUnreadable, "", "cannot read: %s", reason(err))
		return f, nil
	}
	values := f.parse(data, env)
	if len(values) == 0 && len(f.faults) == 0 {
		f.report(place{}, CodeNoPipelines, "", "the file holds no pipeline")
	}
	docs := make([]*document, 0, len(values))
	for _, v := range values {
		docs = append(docs, &document{file: f, value: v, alone: len(values) == 1})
	}
	return f, docs
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("the file is larger than %d bytes", maxFile)
	}
	return os.ReadFile(path)
}

// described is what is known of one plugin.
type described struct {
	found    plugin.Found
	describe *pluginv1.DescribeResponse
	err      error
}

// describeAll asks every plugin that is named, each once.
func describeAll(ctx context.Context, docs []*document, describe DescribeFunc) map[plugin.Found]*described {
	all := map[plugin.Found]*described{}
	for _, d := range docs {
		for _, p := range d.plugins() {
			all[p] = &described{}
		}
	}
	var g errgroup.Group
	g.SetLimit(4)
	for p, d := range all {
		g.Go(func() error {
			d.found, d.describe, d.err = describe(ctx, p.Kind, p.Name)
			if d.err == nil {
				d.err = mismatch(p, d.describe)
			}
			return nil
		})
	}
	_ = g.Wait() // errors are kept beside each plugin
	return all
}

// mismatch reports an executable that is not the plugin that its name says.
func mismatch(want plugin.Found, d *pluginv1.DescribeResponse) error {
	kinds := map[plugin.Kind]pluginv1.PluginKind{
		plugin.KindSource: pluginv1.PluginKind_PLUGIN_KIND_SOURCE, plugin.KindSink: pluginv1.PluginKind_PLUGIN_KIND_SINK,
	}
	switch {
	case d == nil:
		return fmt.Errorf("%s-%s describes nothing", want.Kind, want.Name)
	case d.GetKind() != kinds[want.Kind]:
		return fmt.Errorf("%s-%s says that it is not a %s", want.Kind, want.Name, want.Kind)
	case d.GetName() != want.Name:
		return fmt.Errorf("%s-%s says that its name is %q", want.Kind, want.Name, d.GetName())
	}
	return nil
}

// acrossPipelines reports what is wrong between pipelines: equal names, one table read twice.
func acrossPipelines(docs []*document) {
	names := map[string]*document{}
	feeds := map[feed]*document{}
	for _, d := range docs {
		if d.name != "" {
			if first, ok := names[d.name]; ok {
				d.ok = false
				d.file.report(d.namePlace, CodeDuplicatePipeline, "", "the pipeline %s has the name of another, in %s", d.shownName, first.where())
			} else {
				names[d.name] = d
			}
		}
		for _, fd := range d.feeds {
			first, ok := feeds[fd]
			if !ok {
				feeds[fd] = d
				continue
			}
			d.ok = false
			d.file.report(d.value.get("source").owner(), fd.code, fd.hint(), "%s as the pipeline in %s", fd.what(), first.where())
		}
	}
}

// where names a document for a message about another one.
func (d *document) where() string {
	return fmt.Sprintf("%s line %d", d.file.path, d.value.place.line)
}

// plugins are those that the document names, as far as the names can be plugins.
func (d *document) plugins() []plugin.Found {
	var all []plugin.Found
	add := func(kind plugin.Kind, v *value) {
		if name := pluginName(v.get("plugin")); name != "" {
			all = append(all, plugin.Found{Kind: kind, Name: name})
		}
	}
	add(plugin.KindSource, d.value.get("source"))
	if sinks := d.value.get("sinks"); sinks != nil {
		for _, s := range sinks.items {
			add(plugin.KindSink, s)
		}
	}
	return slices.Compact(all)
}
