package config

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "relevo.yaml")
	write(t, path, "listen: \"127.0.0.1:${PORT}\"\ntoken: 123\nstate: /var/lib/relevo.db\nplugin_dirs: [/opt/a, /opt/b]\nlog: {level: debug, format: json}\n")
	s, faults := LoadSettings(path, lookupIn(map[string]string{"PORT": "80"}))
	require.NoError(t, faults.Err())
	require.Equal(t, Settings{
		File: path, Listen: "127.0.0.1:80", Token: "123", State: "/var/lib/relevo.db", PluginDirs: []string{"/opt/a", "/opt/b"},
		Log: Log{Level: "debug", Format: "json"},
	}, s)

	// Variables win over the file.
	s, faults = LoadSettings(path, lookupIn(map[string]string{
		"PORT": "80", "RELEVO_LISTEN": "", "RELEVO_TOKEN": "t", "RELEVO_STATE": "x.db", "RELEVO_LOG_LEVEL": "warn", "RELEVO_LOG_FORMAT": "text",
	}))
	require.NoError(t, faults.Err())
	require.Equal(t, Settings{
		File: path, Listen: "", Token: "t", State: "x.db", PluginDirs: []string{"/opt/a", "/opt/b"}, Log: Log{Level: "warn", Format: "text"},
	}, s)
}

func TestSettingsDefaults(t *testing.T) {
	t.Parallel()
	want := Settings{Listen: ":7070", State: "relevo.db", Log: Log{Level: "info", Format: "auto"}}
	s, faults := LoadSettings("", lookupIn(nil))
	require.NoError(t, faults.Err())
	require.Equal(t, want, s)
	require.Equal(t, "/var/lib/relevo/relevo.db", DefaultSettings(lookupIn(map[string]string{"STATE_DIRECTORY": "/var/lib/relevo:/var/lib/other"})).State)
	path := filepath.Join(t.TempDir(), "relevo.yaml")
	write(t, path, "# all as it is\n")
	s, faults = LoadSettings(path, lookupIn(nil))
	require.NoError(t, faults.Err())
	want.File = path
	require.Equal(t, want, s)
}

func TestSettingsFaults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "relevo.yaml")
	for _, c := range []struct{ content, code, message string }{
		{"lisen: x", CodeUnknownKey, `unknown key "lisen"`},
		{"source: {}", CodeUnknownKey, "host's settings, not a pipeline"},
		{"log: {level: inf}", CodeBadValue, "log.level must be one of"},
		{"token: [hunter2]", CodeWrongType, "token must be text"},
		{"[]", CodeWrongType, "mapping"},
		{"state: ${NOWHERE}", CodeUnsetVariable, "NOWHERE"},
		{"listen: a\n---\nlisten: b", CodeUnsupportedYAML, "one document"},
		{"a: b: c", CodeYAMLSyntax, ""},
	} {
		write(t, path, c.content)
		_, faults := LoadSettings(path, lookupIn(nil))
		require.Len(t, faults, 1, "%s: %v", c.content, faults)
		require.Equal(t, c.code, faults[0].Code)
		require.Contains(t, faults[0].Message, c.message)
		require.NotContains(t, faults[0].source, secretForTest)
	}
	_, faults := LoadSettings(filepath.Join(t.TempDir(), "none.yaml"), lookupIn(map[string]string{"RELEVO_LOG_LEVEL": "loud"}))
	require.Len(t, faults, 2)
	require.Equal(t, CodeFileUnreadable, faults[0].Code)
	require.Contains(t, faults[1].Message, "RELEVO_LOG_LEVEL")
}
