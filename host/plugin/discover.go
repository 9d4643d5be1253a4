package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// validName keeps a pipeline file from choosing what is executed: a name is never a path.
var validName = regexp.MustCompile(`^[a-z0-9-]+$`)

// Found is one executable that was found.
type Found struct {
	Kind Kind
	Name string
	Path string
}

// Dirs lists where plugins are looked for, in order: dirs (the flag), $RELEVO_PLUGIN_PATH, the directory of the relevo
// executable and its plugins/ sub-directory, /usr/lib/relevo/plugins. Its result is what Find and List take.
func Dirs(dirs []string) []string {
	all := slices.Concat(dirs, filepath.SplitList(os.Getenv("RELEVO_PLUGIN_PATH")))
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real // /usr/bin/relevo may be a link into the installation
		}
		dir := filepath.Dir(exe)
		all = append(all, dir, filepath.Join(dir, "plugins"))
	}
	all = append(all, "/usr/lib/relevo/plugins")

	var out []string
	for _, d := range all {
		if d == "" {
			continue
		}
		if abs, err := filepath.Abs(d); err == nil {
			d = abs
		}
		if !slices.Contains(out, d) {
			out = append(out, d)
		}
	}
	return out
}

// Find looks a plugin up in the directories; the first one that has it wins. The error is a *LaunchError that lists the
// directories searched, and a name that is close.
func Find(dirs []string, kind Kind, name string) (Found, error) {
	file := string(kind) + "-" + name
	if !validName.MatchString(name) {
		return Found{}, &LaunchError{
			Code:    CodeBadName,
			Path:    fmt.Sprintf("%q", name),
			Message: "this is no name of a plugin",
			Hint:    "a name has lower-case letters, digits and dashes, and is never a path; say where plugins are with --plugin-dir",
		}
	}
	var unusable string
	for _, dir := range dirs {
		path, err := filepath.Abs(filepath.Join(dir, file))
		if err != nil {
			continue
		}
		switch info, err := os.Stat(path); {
		case err != nil:
		case info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0:
			return Found{Kind: kind, Name: name, Path: path}, nil
		case unusable == "":
			unusable = path
		}
	}
	if unusable != "" {
		return Found{}, &LaunchError{
			Code:    CodeNotExecutable,
			Path:    file,
			Message: unusable + " is not an executable file",
			Hint:    "run: chmod +x " + unusable,
		}
	}
	e := &LaunchError{
		Code:    CodeNotFound,
		Path:    file,
		Message: "it is in none of the directories " + strings.Join(dirs, ", "),
		Hint:    "install it there, or name its directory with --plugin-dir or $RELEVO_PLUGIN_PATH",
	}
	if close := closest(kind, name, List(dirs)); close != "" {
		e.Hint = close
	}
	return Found{}, e
}

// List returns every plugin in the directories, sorted by kind and name; the first of a name wins.
func List(dirs []string) []Found {
	var out []Found
	seen := map[string]bool{}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // most of the directories are not there on most machines
		}
		for _, e := range entries {
			kind, name, ok := split(e.Name())
			if !ok || seen[e.Name()] {
				continue
			}
			path, err := filepath.Abs(filepath.Join(dir, e.Name()))
			if err != nil {
				continue
			}
			info, err := os.Stat(path) // follows links
			if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
				continue
			}
			seen[e.Name()] = true
			out = append(out, Found{Kind: kind, Name: name, Path: path})
		}
	}
	slices.SortFunc(out, func(a, b Found) int {
		if c := strings.Compare(string(b.Kind), string(a.Kind)); c != 0 { // sources first
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// split takes the name of an executable apart.
func split(file string) (Kind, string, bool) {
	for _, k := range []Kind{KindSource, KindSink} {
		if name, ok := strings.CutPrefix(file, string(k)+"-"); ok && validName.MatchString(name) {
			return k, name, true
		}
	}
	return "", "", false
}

// closest returns a hint that names a plugin which may have been meant.
func closest(kind Kind, name string, all []Found) string {
	best, at := "", 1+max(1, len(name)/3)
	for _, f := range all {
		if f.Name == name && f.Kind != kind {
			return fmt.Sprintf("there is a %s of that name, but no %s", f.Kind, kind)
		}
		if f.Kind == kind {
			if d := distance(name, f.Name); d < at {
				best, at = f.Name, d
			}
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %q?", best)
}

// distance is Levenshtein's.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		left := row[0] // of the row above
		row[0] = i + 1
		for j := range len(b) {
			cost := left
			if a[i] != b[j] {
				cost++
			}
			left = row[j+1]
			row[j+1] = min(cost, row[j]+1, left+1)
		}
	}
	return row[len(b)]
}
