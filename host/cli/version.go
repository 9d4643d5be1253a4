package cli

import (
	"runtime"
	"runtime/debug"
)

// protocolVersion of the plugin protocol that this host speaks.
const protocolVersion = 1

// version is set by the release build (-X); "" takes what the Go tool knows.
var version string

type versionCommand struct {
	JSON bool `name:"json" help:"Print it as JSON."`
}

// Help is shown by --help.
func (versionCommand) Help() string {
	return `Prints the version of relevo, the commit that it was built from, the Go version, and the version of the plugin protocol.

Example:
  relevo version --json`
}

// build is what is known of this executable.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a tree with changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Protocol int    `json:"protocol"`
}

func thisBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Protocol: protocolVersion}
	info, ok := debug.ReadBuildInfo()
	if b.Version == "" && ok {
		b.Version = info.Main.Version
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "devel"
	}
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// Run prints the version.
func (c *versionCommand) Run(a *app) error {
	b := thisBuild()
	if c.JSON {
		return a.out.json(b)
	}
	commit := b.Commit
	if len(commit) > 12 {
		commit = commit[:12]
	}
	switch {
	case commit == "":
		commit = "unknown commit"
	case b.Modified:
		commit += ", modified"
	}
	a.out.printf("relevo %s (%s, %s, %s, plugin protocol %d)\n", b.Version, commit, b.Go, b.Platform, b.Protocol)
	return nil
}
