package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

var (
	pluginName  = regexp.MustCompile(`^[a-z0-9-]+$`)
	snakeCase   = regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	describeFor = 10 * time.Second // `<exe> describe`, a slow interpreter included
)

// errNotDescribed is why nothing else can be said of the plugin.
var errNotDescribed = notRun("Describe did not answer")

// describe is the first check: the others go by what it finds.
func describe(ctx context.Context, r *attempt) error {
	p, err := r.connected(ctx)
	if err != nil {
		return err
	}
	r.try("called Describe")
	d, err := p.plugin().Describe(ctx, &pluginv1.DescribeRequest{})
	if err != nil {
		return fmt.Errorf("call Describe: %w", err)
	}
	switch {
	case !pluginName.MatchString(d.GetName()):
		return fmt.Errorf("the name is %q; it may have lower-case letters, digits and dashes", d.GetName())
	case d.GetKind() != pluginv1.PluginKind_PLUGIN_KIND_SOURCE && d.GetKind() != pluginv1.PluginKind_PLUGIN_KIND_SINK:
		return fmt.Errorf("the kind is %v; it is a source or a sink", d.GetKind())
	}
	r.described = d
	switch {
	case d.GetSummary() == "":
		return errors.New("the summary is empty")
	case d.GetVersion() == "":
		return errors.New("the version is empty")
	}
	if f := d.GetDestination().GetForbidden(); f != "" {
		if _, err := regexp.Compile(f); err != nil {
			return fmt.Errorf("destination.forbidden %q is no character class: %w", f, err)
		}
	}
	r.saw("%s %s %s: %s", kindName(d.GetKind()), d.GetName(), d.GetVersion(), d.GetSummary())
	return nil
}

// describeCommand compares the two ways to ask.
func describeCommand(ctx context.Context, r *attempt) error {
	if r.described == nil {
		return errNotDescribed
	}
	ctx, cancel := context.WithTimeout(ctx, describeFor)
	defer cancel()
	r.try("ran `%s describe`", filepath.Base(r.path))
	cmd := exec.CommandContext(ctx, r.path, "describe") //nolint:gosec // the plugin under test
	cmd.Env = r.usualEnv()
	cmd.WaitDelay = time.Second
	var out, words bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &words
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run `%s describe`: %w\n%s", r.path, err, strings.TrimSpace(words.String()))
	}
	got := &pluginv1.DescribeResponse{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(out.Bytes(), got); err != nil {
		return fmt.Errorf("read the output of `describe` as a DescribeResponse in JSON: %w", err)
	}
	if !proto.Equal(r.described, got) {
		return fmt.Errorf("`describe` and Describe say different things:\n%s\n%s", protojson.Format(got), protojson.Format(r.described))
	}
	r.saw("the same answer as Describe gives")
	return nil
}

const schemaURL = "config.schema.json"

// configSchema checks the schema and finds the configuration for the checks that follow.
func configSchema(_ context.Context, r *attempt) error {
	if r.described == nil {
		return errNotDescribed
	}
	r.try("compiled the schema")
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(r.described.GetConfigSchema()))
	if err != nil {
		return fmt.Errorf("read config_schema as JSON: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat()
	if err := c.AddResource(schemaURL, doc); err != nil {
		return fmt.Errorf("read config_schema: %w", err)
	}
	schema, err := c.Compile(schemaURL)
	if err != nil {
		return fmt.Errorf("config_schema is no JSON Schema: %w", err)
	}
	config := r.spec.Config
	r.try("held the config of conformance.yaml against it")
	if config == nil {
		config = map[string]any{}
	}
	data, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode config: %w", err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data)) // numbers as the validator wants them
	if err != nil {
		return fmt.Errorf("decode config: %w", err)
	}
	if err := schema.Validate(value); err != nil {
		if r.spec.Config == nil {
			r.noConfig = needs("config")
			r.saw("the schema is valid, and does not allow {}")
			return nil
		}
		r.noConfig = notRun("the config of conformance.yaml is not valid")
		return fmt.Errorf("the config of conformance.yaml is not valid: %w", err)
	}
	if d := r.described.GetDestination(); d != nil && r.spec.Destination == "" && r.described.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SINK {
		r.noConfig = needs("destination")
		r.saw("the schema and the config are valid; events need a %s", d.GetNoun())
		return nil
	}
	r.config = data
	r.saw("both are valid")
	return nil
}

// unknownKey opens a stream with a key in the configuration that can't be known.
func unknownKey(ctx context.Context, r *attempt) error {
	const key = "relevo_conformance_unknown_key"
	var config map[string]any
	if err := json.Unmarshal(r.config, &config); err != nil {
		return fmt.Errorf("decode config: %w", err)
	}
	config[key] = true
	data, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode config: %w", err)
	}
	p, err := r.connected(ctx)
	if err != nil {
		return err
	}
	r.try("opened a stream with the key %q in the config", key)
	e, err := r.openAny(ctx, p, data)
	if err != nil {
		return err
	}
	f, err := e.faulted(ctx)
	if err != nil {
		return fmt.Errorf("a config with the unknown key %q: %w", key, err)
	}
	if f.GetClass() != pluginv1.ErrorClass_ERROR_CLASS_CONFIG {
		return fmt.Errorf("the fault is %s; its class should be CONFIG", faultText(f))
	}
	if !strings.Contains(f.GetMessage()+f.GetHint(), key) {
		return fmt.Errorf("the fault does not name the key: %s", faultText(f))
	}
	r.saw("fault %s", faultText(f))
	return nil
}

func kindName(k pluginv1.PluginKind) string {
	if k == pluginv1.PluginKind_PLUGIN_KIND_SOURCE {
		return "source"
	}
	return "sink"
}

// openAny opens a stream of the plugin's kind without waiting for Opened.
func (r *attempt) openAny(ctx context.Context, p *process, config []byte) (*ending, error) {
	if r.described.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SOURCE {
		s, err := r.readSource(ctx, p, sourceOptions{config: config})
		if err != nil {
			return nil, err
		}
		return &s.ending, nil
	}
	s, err := r.writeSink(ctx, p, config)
	if err != nil {
		return nil, err
	}
	return &s.ending, nil
}
