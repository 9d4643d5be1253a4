package plugin

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
)

// What a plugin gets of the host's environment. I9: nothing else, since secrets stand there.
var allowedEnv = []string{"PATH", "HOME", "TMPDIR", "LANG", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR", "GODEBUG"}

// socketDirKey is go-plugin's; servers in every language read it.
const socketDirKey = "PLUGIN_UNIX_SOCKET_DIR"

// pluginEnv is the environment of a plugin: of each name the last one counts, so that the handshake's can't be
// overridden.
func pluginEnv(host []string, s Settings, socketDir string, handshake []string) []string {
	env := allowed(host)
	for _, k := range slices.Sorted(maps.Keys(s.Env)) {
		env = append(env, k+"="+s.Env[k])
	}
	env = append(env, handshake...)
	return append(env,
		socketDirKey+"="+socketDir, // ours is shorter than the one that go-plugin makes
		"RELEVO_HOST_PID="+strconv.Itoa(os.Getpid()),
		"RELEVO_LOG_LEVEL="+logLevel(s.Log),
	)
}

func allowed(host []string) []string {
	var env []string
	for _, kv := range host {
		k, _, _ := strings.Cut(kv, "=")
		if slices.Contains(allowedEnv, k) || strings.HasPrefix(k, "LC_") {
			env = append(env, kv)
		}
	}
	return env
}

// logLevel is the lowest level that somebody reads.
func logLevel(log *slog.Logger) string {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn} {
		if log.Enabled(context.Background(), l) {
			return strings.ToLower(l.String())
		}
	}
	return "error"
}
