package config

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/relevo-io/relevo/host/destination"
	"github.com/relevo-io/relevo/host/plugin"
)

//go:embed pipeline.schema.json
var pipelineSchemaText string

var pipelineSchema = sync.OnceValue(func() *jsonschema.Schema {
	s, err := compileSchema(pipelineSchemaText)
	if err != nil {
		panic("BUG: pipeline.schema.json: " + err.Error())
	}
	return s
})

var (
	nameForm   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,39}$`)
	pluginForm = regexp.MustCompile(`^[a-z0-9-]{1,100}$`)
)

const nameRule = "a name has 1 to 40 lower-case letters, digits and dashes, and begins with a letter"

// document is one YAML document of a pipeline file, on its way to a Pipeline.
type document struct {
	file  *file
	value *value
	alone bool // the only one of its file

	name      string // "" if it has none that counts
	shownName string
	namePlace place
	feeds     []feed
	ok        bool // no fault so far
	pipeline  *Pipeline
}

// build checks the document and makes its pipeline. Faults go to the file.
func (d *document) build(plugins map[plugin.Found]*described) {
	before := len(d.file.faults)
	if d.value.kind != mapping {
		d.file.report(d.value.place, CodeWrongType, "", "a pipeline is a mapping with the keys source and sinks")
		return
	}
	c := &checker{file: d.file, top: d.value, unknown: d.unknownKey(plugins)}
	c.check(pipelineSchema())
	d.checkName()
	p := &Pipeline{Name: d.name, File: d.file.path, Delivery: DefaultDelivery(), Errors: DefaultErrors()}
	d.delivery(&p.Delivery)
	d.policies(&p.Errors)
	if v := d.value.get("source"); v != nil && v.kind == mapping {
		p.Source = d.plugin(v, plugin.KindSource, "source", plugins)
		d.feeds = feedsOf(p.Source)
	}
	d.sinks(p, plugins)
	d.pipeline, d.ok = p, len(d.file.faults) == before && !d.value.hasUnknown()
	if d.value.hasUnknown() && len(d.file.faults) == before {
		d.ok = true // tolerated: the caller asked for it
	}
}

func (d *document) checkName() {
	v := d.value.get("name")
	switch {
	case v == nil && !d.alone:
		d.file.report(d.value.place, CodeMissingKey, `add "name"`, "a file with several pipelines must name each")
		return
	case v == nil:
		base := filepath.Base(d.file.path)
		name := strings.TrimSuffix(base, filepath.Ext(base))
		if !nameForm.MatchString(name) {
			d.file.report(d.value.place, CodeBadName, `add "name", or rename the file; `+nameRule,
				"the file's name %q cannot be the name of a pipeline", name)
			return
		}
		d.name, d.shownName, d.namePlace = name, fmt.Sprintf("%q", name), d.value.place
		return
	case v.kind != scalar || v.isNull() || v.unknown:
		return
	}
	if !nameForm.MatchString(v.text) {
		d.file.report(v.place, CodeBadName, nameRule, "%s cannot be the name of a pipeline", v.show())
		return
	}
	d.name, d.shownName, d.namePlace = v.text, v.show(), v.place
}

// DefaultDelivery is what a pipeline file that says nothing means.
func DefaultDelivery() Delivery {
	return Delivery{MaxInFlightEvents: 10_000, MaxInFlightBytes: 64 << 20, DrainTimeout: 30 * time.Second, StallAfter: time.Minute}
}

// DefaultErrors is what a pipeline file that says nothing means.
func DefaultErrors() Errors {
	return Errors{Permanent: Block, RetryInitial: 200 * time.Millisecond, RetryMax: 30 * time.Second}
}

func (d *document) delivery(to *Delivery) {
	v := d.value.get("delivery")
	window := v.get("max_in_flight")
	if n, ok := integerOf(window.get("events")); ok {
		to.MaxInFlightEvents = int(n)
	}
	if b := window.get("bytes"); b != nil && b.kind == scalar && !b.isNull() && !b.unknown && sizeForm.MatchString(b.text) {
		n, err := ParseSize(b.text)
		if err != nil || n < 1 || n > 1<<40 {
			d.file.report(b.place, CodeBadValue, "", "delivery.max_in_flight.bytes must be between 1 byte and 1024GiB")
		} else {
			to.MaxInFlightBytes = int(n)
		}
	}
	d.duration(v, "delivery.", "drain_timeout", &to.DrainTimeout, false)
	d.duration(v, "delivery.", "stall_after", &to.StallAfter, false)
}

func (d *document) policies(to *Errors) {
	v := d.value.get("errors")
	t := v.get("transient")
	before := len(d.file.faults)
	d.duration(t, "errors.transient.", "initial", &to.RetryInitial, false)
	d.duration(t, "errors.transient.", "max", &to.RetryMax, false)
	d.duration(t, "errors.transient.", "give_up_after", &to.GiveUpAfter, true)
	if to.RetryInitial > to.RetryMax && len(d.file.faults) == before {
		at := t.get("initial")
		if at == nil {
			at = t.get("max")
		}
		d.file.report(at.place, CodeBadValue, "", "errors.transient.initial (%s) is longer than max (%s)", to.RetryInitial, to.RetryMax)
	}
	if p := v.get("permanent"); p != nil && p.kind == scalar && !p.isNull() {
		to.Permanent = Permanent(p.text)
	}
}

// integerOf reads a whole number whose form the schema has checked.
func integerOf(v *value) (int64, bool) {
	if v == nil || v.kind != scalar || v.isNull() || v.unknown {
		return 0, false
	}
	x := numberOf(v.text)
	if !v.from && v.plain {
		x = yamlInstance(v)
	}
	n, ok := x.(json.Number)
	if !ok {
		return 0, false
	}
	i, err := strconv.ParseInt(n.String(), 10, 64)
	return i, err == nil
}

// duration reads a duration whose form the schema has checked.
func (d *document) duration(in *value, path, key string, to *time.Duration, zero bool) {
	v := in.get(key)
	if v == nil || v.kind != scalar || v.isNull() || v.unknown || !durationForm.MatchString(v.text) {
		return
	}
	x, err := ParseDuration(v.text)
	switch {
	case err != nil:
		d.file.report(v.place, CodeBadValue, "", "%s%s is too long a time", path, key)
	case x == 0 && !zero:
		d.file.report(v.place, CodeBadValue, "", "%s%s must be more than 0", path, key)
	default:
		*to = x
	}
}

func (d *document) sinks(p *Pipeline, plugins map[plugin.Found]*described) {
	v := d.value.get("sinks")
	if v == nil {
		return
	}
	taken := map[string]place{}
	for i, s := range v.items {
		if s.kind != mapping {
			continue
		}
		path := fmt.Sprintf("sinks[%d]", i)
		k := Sink{Plugin: d.plugin(s, plugin.KindSink, path, plugins)}
		named := s.get("name")
		at, shown, name := s.place, "", pluginName(s.get("plugin"))
		if named != nil {
			at, shown, name = named.place, "", ""
			if named.kind == scalar && !named.isNull() && !named.unknown {
				name, shown = named.text, named.show()
			}
		}
		switch first, ok := taken[name]; {
		case name == "":
		case !nameForm.MatchString(name):
			if shown == "" {
				shown = fmt.Sprintf("%q", name)
			}
			d.file.report(at, CodeBadName, nameRule, "%s cannot be the name of a sink", shown)
		case name == "source":
			d.file.report(at, CodeBadName, "", `a sink cannot be called "source"`)
		case ok:
			d.file.report(at, CodeDuplicateSink, `give each sink a "name" of its own`, "the sink has the name of the one in line %d", first.line)
		default:
			taken[name] = at
		}
		k.Name = name
		k.To = d.to(s, path, k.Plugin)
		p.Sinks = append(p.Sinks, k)
	}
}

// pluginName is the name in a `plugin` key, "" if it cannot be one.
func pluginName(v *value) string {
	if v == nil || v.kind != scalar || v.unknown || !pluginForm.MatchString(v.text) {
		return ""
	}
	return v.text
}

// plugin checks the configuration of a source or sink against what its plugin says of itself.
func (d *document) plugin(v *value, kind plugin.Kind, path string, plugins map[plugin.Found]*described) Plugin {
	p := Plugin{Kind: kind, StartTimeout: 30 * time.Second}
	d.process(v, path, &p)
	config := v.get("config")
	named := v.get("plugin")
	if p.Plugin = pluginName(named); p.Plugin == "" {
		d.file.hide(config) // nobody says which of it is secret
		return p
	}
	known := plugins[plugin.Found{Kind: kind, Name: p.Plugin}]
	if known.err != nil {
		code := CodePluginBroken
		if known.found.Path == "" {
			code = CodePluginNotFound
		}
		message, hint := known.err.Error(), ""
		if e, ok := errors.AsType[*plugin.LaunchError](known.err); ok {
			short := *e
			short.Hint = ""
			message, hint = strings.ReplaceAll(short.Error(), "\n", " "), e.Hint
		}
		if named.from {
			hint, message = "", fmt.Sprintf("the %s plugin that ${…} names cannot be used", kind)
		}
		d.file.hide(config)
		d.file.report(named.place, code, hint, "%s", message)
		return p
	}
	p.Path, p.Describe = known.found.Path, known.describe
	s, err := compileSchema(known.describe.GetConfigSchema())
	if err != nil {
		d.file.hide(config)
		d.file.report(named.place, CodePluginBroken, "tell its author", "the schema of %s-%s is broken: %s", kind, p.Plugin, err)
		return p
	}
	if config == nil || config.isNull() {
		config = &value{kind: mapping, place: v.place, key: v.key}
		if at := v.get("config"); at != nil {
			config.place, config.key = at.place, at.key
		}
	} else if config.kind != mapping {
		return p // the pipeline's own schema says it
	}
	c := &checker{file: d.file, top: config, path: path + ".config", unknown: d.unknownConfigKey(kind)}
	x, _ := c.check(s)
	if p.Config, err = json.Marshal(x); err != nil {
		panic("BUG: marshal a decoded config: " + err.Error())
	}
	return p
}

func (d *document) process(v *value, path string, p *Plugin) {
	process := v.get("process")
	d.duration(process, path+".process.", "start_timeout", &p.StartTimeout, false)
	env := process.get("env")
	if env == nil {
		return
	}
	for _, e := range env.entries {
		if e.value.kind != scalar || e.value.isNull() {
			continue // the schema says it
		}
		if e.key == "" || strings.ContainsAny(e.key, "=\x00") || strings.Contains(e.value.text, "\x00") {
			d.file.report(e.place, CodeBadValue, "", "%s.process.env: %q cannot be an environment variable", path, e.key)
			continue
		}
		if p.Env == nil {
			p.Env = map[string]string{}
		}
		p.Env[e.key] = e.value.text
	}
}

// to parses the destination of a sink and holds it against what the plugin says of destinations.
func (d *document) to(s *value, path string, p Plugin) *destination.Template {
	v := s.get("to")
	if v != nil && (v.kind != scalar || v.isNull() || v.unknown || v.text == "") {
		return nil // the schema says it
	}
	var t *destination.Template
	if v != nil {
		t = d.parseTo(v, path)
	}
	if p.Describe == nil {
		return t
	}
	rules := p.Describe.GetDestination()
	switch {
	case rules == nil && v != nil:
		d.file.report(v.owner(), CodeDestinationNotAllowed, "", "%s.to: the plugin %s has no destinations", path, p.Plugin)
		return nil
	case rules == nil:
		return nil
	}
	noun := rules.GetNoun()
	if noun == "" {
		noun = "destination"
	}
	if _, err := destination.NewRules(noun, rules.GetForbidden(), int(rules.GetMaxBytes())); err != nil {
		d.file.report(s.get("plugin").place, CodePluginBroken, "tell its author", "the destination of sink-%s is broken: %s", p.Plugin, err)
		return nil
	}
	if v == nil {
		d.file.report(s.owner(), CodeDestinationMissing, fmt.Sprintf(`for example to: "{aggregate_type}" or to: "orders.{type}"; it is the %s`, noun),
			`%s needs "to", the %s that events go to`, path, noun)
		return nil
	}
	if limit := int(rules.GetMaxBytes()); t != nil && limit > 0 && t.MinBytes() > limit {
		d.file.report(v.place, CodeDestinationTooLong, "", "%s.to: the %s has at least %d bytes, the limit is %d", path, noun, t.MinBytes(), limit)
		return nil
	}
	return t
}

func (d *document) parseTo(v *value, path string) *destination.Template {
	t, err := destination.Parse(v.text)
	if err == nil {
		return t
	}
	se, ok := errors.AsType[*destination.SyntaxError](err)
	switch {
	case !ok:
		panic("BUG: destination.Parse returned another error: " + err.Error())
	case v.from:
		d.file.report(v.place, CodeBadDestination, "", "%s.to: what ${…} stands for makes no valid destination", path)
	default:
		d.file.report(d.file.inside(v, se.Offset), CodeBadDestination, se.Hint, "%s.to: %s", path, se.Message)
	}
	return nil
}
