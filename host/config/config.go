// Package config turns pipeline files into Pipelines, and everything that is wrong with them into Diagnostics, each
// with its place, all at once.
package config

import (
	"time"

	"github.com/relevo-io/relevo/host/destination"
	"github.com/relevo-io/relevo/host/plugin"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Pipeline is one valid pipeline, defaults filled in.
type Pipeline struct {
	Name     string
	File     string // where it was written
	Source   Plugin
	Sinks    []Sink // at least one
	Delivery Delivery
	Errors   Errors
}

// Plugin is a source or a sink: an executable and its configuration.
type Plugin struct {
	Kind         plugin.Kind
	Plugin       string                     // name, as written
	Path         string                     // executable
	Describe     *pluginv1.DescribeResponse // what it says of itself
	Config       []byte                     // JSON object, substituted; secrets in it: never print it (see Masked)
	StartTimeout time.Duration              // defaults to 30 s
	Env          map[string]string          // may hold secrets
}

// Sink is one sink of a pipeline.
type Sink struct {
	Plugin
	Name string                // defaults to the plugin's name
	To   *destination.Template // nil: the sink has no destinations
}

// Delivery bounds what is in flight.
type Delivery struct {
	MaxInFlightEvents int           // defaults to 10,000
	MaxInFlightBytes  int           // defaults to 64 MiB
	DrainTimeout      time.Duration // defaults to 30 s
	StallAfter        time.Duration // defaults to 1 m
}

// Permanent is the policy for events that a sink refuses for good.
type Permanent string

// Policies of errors.permanent.
const (
	Block   Permanent = "block"   // hold the key, say so, try its head again every minute
	Discard Permanent = "discard" // count it, remember it, go on
)

// Errors is the policy of a pipeline for failures.
type Errors struct {
	Permanent    Permanent     // defaults to block
	RetryInitial time.Duration // defaults to 200 ms
	RetryMax     time.Duration // defaults to 30 s
	GiveUpAfter  time.Duration // transient failures older than this meet the permanent policy; 0: never
}
