package main

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

func TestConfigFaults(t *testing.T) {
	t.Parallel()
	for fault, change := range map[string]func(*Config){
		"servers: at least one": func(c *Config) { c.Servers = nil },
		"credentials go under":  func(c *Config) { c.Servers = []string{"nats://u:hunter2@h"} },
		"no commas":             func(c *Config) { c.Servers = []string{"a,b"} },
		"scheme":                func(c *Config) { c.Servers = []string{"http://h"} },
		"is not a stream name":  func(c *Config) { c.Stream = "a.b" },
		"publish:":              func(c *Config) { c.Publish = "fast" },
		"ack_timeout":           func(c *Config) { c.AckTimeout = sdk.Duration(time.Millisecond) },
		"needs stream":          func(c *Config) { c.CreateStream = &CreateStream{Subjects: []string{"a"}} },
		"exclude each other":    func(c *Config) { c.Auth = &Auth{Token: "t", Creds: "c"} },
		"is needed":             func(c *Config) { c.Auth = &Auth{} },
		"password needs user":   func(c *Config) { c.Auth = &Auth{Password: "p"} },
		"cert and key belong":   func(c *Config) { c.TLS = &TLS{Cert: "c"} },
		"inbox_prefix":          func(c *Config) { c.InboxPrefix = "a.>" },
	} {
		c := config("nats://h:4222", change)
		err := c.Validate()
		require.ErrorContains(t, err, fault)
		require.NotContains(t, err.Error(), "hunter2")
	}
	for _, s := range []string{"h", "h:4222", "nats://h", "tls://h:4222", "ws://h", "wss://h"} {
		require.NoError(t, config(s).Validate())
	}
}

// I9: no way to print a configuration shows a secret.
func TestSecretsDoNotPrint(t *testing.T) {
	t.Parallel()
	c := config("h", func(c *Config) {
		c.Auth = &Auth{User: "u", Password: "hunter2", Token: "hunter2", Nkey: "hunter2", Creds: "hunter2"}
		c.TLS = &TLS{Key: "hunter2"}
	})
	j, err := json.Marshal(c)
	require.NoError(t, err)
	for _, s := range []string{string(j), fmt.Sprintf("%v %+v %#v", *c.Auth, *c.Auth, *c.Auth), fmt.Sprintf("%v %+v %#v", *c.TLS, *c.TLS, *c.TLS)} {
		require.NotContains(t, s, "hunter2")
	}
	_, err = (&Auth{Creds: "hunter2"}).credentials()
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hunter2", "a mistyped secret is taken for a path")
}
