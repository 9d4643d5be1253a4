package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// registration is a plugin without its type parameter: what the services call.
type registration struct {
	describe *pluginv1.DescribeResponse
	check    func(ctx context.Context, r *pluginv1.CheckRequest) (*pluginv1.CheckResponse, error)

	// One of them: an attempt, from Open to the last message.
	read  func(ctx context.Context, open *pluginv1.SourceOpen, s *SourceStream) error
	write func(ctx context.Context, open *pluginv1.SinkOpen, s *SinkStream) error

	streams streams // the one that is open

	hostSeen atomic.Int64 // Unix nanoseconds of the host's last health check; 0: there was none

	// crash ends the process after a panic. Set by serve; nil in tests without a process, where a panic fails its call.
	crash func()
}

var nameRule = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

// newRegistration checks the spec. A wrong one is a bug in the plugin that its first start shows, so it panics.
func newRegistration[C any](spec Spec[C], kind pluginv1.PluginKind) *registration {
	source := kind == pluginv1.PluginKind_PLUGIN_KIND_SOURCE
	switch {
	case !nameRule.MatchString(spec.Name):
		panic(fmt.Sprintf("BUG: sdk.Spec: name %q is not lower case letters, digits and dashes", spec.Name))
	case source && (spec.KeepsOrder || spec.Destination != nil):
		panic("BUG: sdk.Spec: KeepsOrder and Destination are for sinks")
	case !source && (spec.HoldsKeys || spec.HasPositions):
		panic("BUG: sdk.Spec: HoldsKeys and HasPositions are for sources")
	case spec.MaxMessageBytes < 0 || spec.MaxMessageBytes > wire.MaxMessage:
		panic(fmt.Sprintf("BUG: sdk.Spec: MaxMessageBytes %d is not within 0 and %d", spec.MaxMessageBytes, wire.MaxMessage))
	}
	schema, err := configSchema(spec.Defaults)
	if err != nil {
		panic("BUG: sdk.Spec: make the configuration's schema: " + err.Error())
	}
	d := &pluginv1.DescribeResponse{
		Name:    spec.Name,
		Version: spec.Version,
		Kind:    kind,
		Summary: spec.Summary,
		Capabilities: &pluginv1.Capabilities{
			HoldsKeys:    spec.HoldsKeys,
			HasPositions: spec.HasPositions,
			KeepsOrder:   spec.KeepsOrder,
		},
		ConfigSchema:    string(schema),
		MaxMessageBytes: uint64(spec.MaxMessageBytes),
	}
	if d.Version == "" {
		d.Version = buildVersion()
	}
	if !source && d.MaxMessageBytes == 0 {
		d.MaxMessageBytes = wire.DefaultMaxMessage
	}
	if dst := spec.Destination; dst != nil {
		if _, err := regexp.Compile(dst.Forbidden); err != nil {
			panic("BUG: sdk.Spec: Destination.Forbidden: " + err.Error())
		}
		d.Destination = &pluginv1.Destination{Noun: dst.Noun, MaxBytes: uint32(dst.MaxBytes), Forbidden: dst.Forbidden}
	}
	return &registration{describe: d, check: checker(spec)}
}

// buildVersion is the version of the main module, or the revision it was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" }); i >= 0 {
		return "devel+" + info.Settings[i].Value[:min(12, len(info.Settings[i].Value))]
	}
	return "devel"
}

func (r *registration) registration() *registration { return r }

func (r *registration) isSink() bool {
	return r.describe.GetKind() == pluginv1.PluginKind_PLUGIN_KIND_SINK
}

// kind is the key in go-plugin's plugin map, and the first word of the executable's name.
func (r *registration) kind() string {
	if r.isSink() {
		return "sink"
	}
	return "source"
}

func (r *registration) executable() string { return r.kind() + "-" + r.describe.GetName() }

// describeJSON is the answer of the describe sub-command. protojson varies its white space on purpose; indented again,
// the same plugin always prints the same bytes.
func (r *registration) describeJSON() ([]byte, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(r.describe)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, b, "", "  "); err != nil {
		return nil, err
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}

// Register adds the plugin's services to a gRPC server, for tests that need no process. The server must have been made
// with ServerOptions.
func Register(s grpc.ServiceRegistrar, p Plugin) { p.registration().register(s) }

// ServerOptions are the options that a gRPC server needs to serve the plugin.
func ServerOptions(p Plugin) []grpc.ServerOption { return p.registration().serverOptions() }
