package config

import (
	_ "embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

//go:embed settings.schema.json
var settingsSchemaText string

var settingsSchema = sync.OnceValue(func() *jsonschema.Schema {
	s, err := compileSchema(settingsSchemaText)
	if err != nil {
		panic("BUG: settings.schema.json: " + err.Error())
	}
	return s
})

// SettingsFiles are where host settings are looked for when no file is named: the first that exists.
var SettingsFiles = []string{"relevo.yaml", "/etc/relevo/relevo.yaml"}

// Settings are the host's own, from relevo.yaml.
type Settings struct {
	File       string // "" if there was none
	Listen     string // host:port of health, metrics and API; "": off. Defaults to ":7070"
	Token      string // secret; "": the API answers loopback only
	State      string // file of the state database. Defaults to $STATE_DIRECTORY/relevo.db, else relevo.db
	PluginDirs []string
	Log        Log
}

// Log settings.
type Log struct {
	Level  string // debug, info, warn or error. Defaults to info
	Format string // auto, text or json. Defaults to auto
}

// DefaultSettings are those without a file. lookup reads the environment.
func DefaultSettings(lookup func(string) (string, bool)) Settings {
	state := "relevo.db"
	if dir, _ := lookup("STATE_DIRECTORY"); dir != "" {
		// systemd names several, separated by colons; ours is the first.
		state = filepath.Join(filepath.SplitList(dir)[0], state)
	}
	return Settings{Listen: ":7070", State: state, Log: Log{Level: "info", Format: "auto"}}
}

// LoadSettings reads the file, or the first of SettingsFiles that exists if path is "", and then the RELEVO_… variables,
// which win. lookup reads the environment; nil is the process's own.
func LoadSettings(path string, lookup func(string) (string, bool)) (Settings, Diagnostics) {
	if lookup == nil {
		lookup = os.LookupEnv
	}
	s := DefaultSettings(lookup)
	var faults Diagnostics
	if path == "" {
		for _, p := range SettingsFiles {
			if _, err := os.Stat(p); !errors.Is(err, fs.ErrNotExist) {
				path = p
				break
			}
		}
	}
	if path != "" {
		s.File = path
		faults = s.read(path, lookup)
	}
	return s, append(faults, s.environment(lookup)...)
}

func (s *Settings) read(path string, lookup func(string) (string, bool)) Diagnostics {
	data, err := readFile(path)
	f := newFile(path, data)
	if err != nil {
		f.report(place{}, CodeFileUnreadable, "", "cannot read: %s", reason(err))
		return f.diagnostics()
	}
	values := f.parse(data, environment{lookup: lookup})
	if len(values) > 1 {
		f.report(values[1].place, CodeUnsupportedYAML, "", "host settings are one document")
	}
	if len(values) == 0 || len(f.faults) > 0 {
		return f.diagnostics()
	}
	v := values[0]
	c := &checker{file: f, top: v, unknown: pipelineKeyInSettings}
	if v.kind != mapping {
		f.report(v.place, CodeWrongType, "", "host settings are a mapping")
	} else if _, ok := c.check(settingsSchema()); ok {
		take := func(to *string, from *value) {
			if from != nil && !from.isNull() {
				*to = from.text
			}
		}
		take(&s.Listen, v.get("listen"))
		take(&s.Token, v.get("token"))
		take(&s.State, v.get("state"))
		take(&s.Log.Level, v.get("log").get("level"))
		take(&s.Log.Format, v.get("log").get("format"))
		if dirs := v.get("plugin_dirs"); dirs != nil {
			for _, d := range dirs.items {
				s.PluginDirs = append(s.PluginDirs, d.text)
			}
		}
	}
	return f.diagnostics().sorted()
}

func pipelineKeyInSettings(path []string, key string) (code, message, hint string) {
	if len(path) == 0 && (key == "source" || key == "sinks") {
		return CodeUnknownKey, "unknown key \"" + key + "\": these are the host's settings, not a pipeline", "give the pipeline a file of another name"
	}
	return "", "", ""
}

// environment takes the RELEVO_… variables over what the file says.
func (s *Settings) environment(lookup func(string) (string, bool)) (faults Diagnostics) {
	for _, v := range []struct {
		name string
		to   *string
		one  []string
	}{
		{"RELEVO_LISTEN", &s.Listen, nil},
		{"RELEVO_TOKEN", &s.Token, nil},
		{"RELEVO_STATE", &s.State, nil},
		{"RELEVO_LOG_LEVEL", &s.Log.Level, []string{"debug", "info", "warn", "error"}},
		{"RELEVO_LOG_FORMAT", &s.Log.Format, []string{"auto", "text", "json"}},
	} {
		x, ok := lookup(v.name)
		if !ok || (x == "" && v.name != "RELEVO_LISTEN") {
			continue
		}
		if v.one != nil && !slices.Contains(v.one, x) {
			faults = append(faults, Diagnostic{
				Code: CodeBadValue, Message: "the variable " + v.name + " must be one of " + strings.Join(v.one, ", "), Hint: didYouMean(x, v.one),
			})
			continue
		}
		*v.to = x
	}
	return faults
}
