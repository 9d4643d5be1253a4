package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestSubstitute(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("s3cret\n\n"), 0o600))
	windows := filepath.Join(dir, "windows")
	require.NoError(t, os.WriteFile(windows, []byte("s3cret\r\n"), 0o600))
	env := environment{lookup: lookupIn(map[string]string{"A": "x", "EMPTY": "", "NESTED": "${A}$$", "file": "f"})}
	for in, want := range map[string]string{
		"plain": "plain", "${A}": "x", "a${A}b${A}": "axbx", "$A": "$A", "$": "$", "a$": "a$", "$$": "$", "$${A}": "${A}", "$$$": "$$",
		"$5$x": "$5$x", "${B:-y}": "y", "${A:-y}": "x", "${EMPTY:-y}": "y", "${EMPTY}": "", "${B:-}": "", "${B:-a:-b}": "a:-b",
		"${B:-$x}": "$x", "${A:?m}": "x", "${NESTED}": "${A}$$", "${file}": "f", "${file:-d}": "f", "${B:-a\nb}": "a\nb",
		"${file:" + secret + "}": "s3cret\n", "${file:" + windows + "}": "s3cret",
	} {
		s, faults := env.substitute(in)
		require.Empty(t, faults, in)
		require.Equal(t, want, s.text, in)
		require.Equal(t, strings.Contains(strings.ReplaceAll(in, "$$", ""), "${"), s.changed, in)
	}
	large := filepath.Join(dir, "large")
	require.NoError(t, os.WriteFile(large, make([]byte, maxSubstitutedFile+1), 0o600))
	binary := filepath.Join(dir, "binary")
	require.NoError(t, os.WriteFile(binary, []byte{0xff}, 0o600))
	for in, code := range map[string]string{
		"${B}": CodeUnsetVariable, "${EMPTY:?}": CodeUnsetVariable, "${B:?why}": CodeUnsetVariable, "${": CodeBadSubstitution, "${A": CodeBadSubstitution,
		"${}": CodeBadSubstitution, "${1}": CodeBadSubstitution, "${A-x}": CodeBadSubstitution, "${A:+x}": CodeBadSubstitution, "${A:x}": CodeBadSubstitution,
		"${B:-${A}}": CodeBadSubstitution, "${file:x}": CodeBadSubstitution, "${file:}": CodeBadSubstitution, "${file:" + dir + "}": CodeUnsetVariable,
		"${file:" + large + "}": CodeUnsetVariable, "${file:" + binary + "}": CodeNotUTF8,
	} {
		_, faults := env.substitute("é" + in)
		require.Len(t, faults, 1, in)
		require.Equal(t, code, faults[0].code, in)
		require.Equal(t, len("é"), faults[0].offset, in)
	}
	_, faults := env.substitute("${B}${C}")
	require.Len(t, faults, 2, "all at once")
}

// Escaping any text makes it come out as it was, whatever the environment, and what variables hold is never read again.
func TestSubstituteProperties(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOfN(rapid.StringOf(rapid.RuneFrom([]rune("${}:-?aA \n"))), 1, 5).Draw(t, "texts")
		vars, in, want := map[string]string{}, "", ""
		for i, s := range texts {
			name := fmt.Sprintf("V%d", i)
			vars[name] = s
			in += strings.ReplaceAll(s, "$", "$$") + "${" + name + "}"
			want += s + s
		}
		got, faults := environment{lookup: lookupIn(vars)}.substitute(in)
		require.Empty(t, faults)
		require.Equal(t, want, got.text)
		require.True(t, got.changed)
	})
}

// A value that came from ${…} is in no message, wherever it stands and whatever is wrong with it.
func TestSubstitutedValuesAreNeverShown(t *testing.T) {
	t.Parallel()
	const marker = "zqxj"
	places := []string{"name", "version", "plugin", "dsn", "batch", "poll", "pending", "preset", "after", "env", "sink", "to", "server", "events", "bytes", "drain", "permanent"}
	path := filepath.Join(t.TempDir(), "a.yaml")
	var b strings.Builder
	b.WriteString("name: ${name}\nversion: ${version}\nsource: {plugin: \"${plugin}\", config: {dsn: \"${dsn}\", batch: \"${batch}\", poll_interval: \"${poll}\", pending: \"${pending}\", preset: \"${preset}\", after_publish: \"${after}\"}, process: {env: {X: \"${env}\"}}}\n")
	b.WriteString("sinks: [{name: \"${sink}\", plugin: nats, to: \"${to}\", config: {servers: [\"${server}\", \"${server}\"]}}]\n")
	b.WriteString("delivery: {max_in_flight: {events: \"${events}\", bytes: \"${bytes}\"}, drain_timeout: \"${drain}\"}\nerrors: {permanent: \"${permanent}\"}\n")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o600))
	rapid.Check(t, func(rt *rapid.T) {
		env := map[string]string{}
		for _, p := range places {
			env[p] = rapid.SampledFrom([]string{"", "{" + marker + "}", marker, marker + "\x00", strings.Repeat(marker, 30), "postgres://" + marker}).Draw(rt, p)
			if p == "plugin" && rapid.Bool().Draw(rt, "real plugin") {
				env[p] = "postgres-poll"
			}
		}
		_, faults := loadForTest(t, env, path)
		require.NotEmpty(rt, faults)
		require.NotContains(rt, faults.Error(), marker)
		for _, f := range faults {
			require.NotContains(rt, f.Hint, marker)
			require.NotContains(rt, f.source, marker)
		}
	})
}
