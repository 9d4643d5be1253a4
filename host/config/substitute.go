package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxSubstitutedFile bounds what ${file:…} reads: secrets and certificates are small, and /dev/zero is not.
const maxSubstitutedFile = 1 << 20

// substitution is the outcome of one scalar.
type substitution struct {
	text    string
	changed bool // something came from ${…}: text must not be shown
	unknown bool // something was not there, and that is tolerated
}

// substitutionError is a fault in a ${…}. Its message never holds a value.
type substitutionError struct {
	code    string
	message string
	hint    string
	offset  int // bytes into the text, of the "$"
	open    bool
}

func (e *substitutionError) Error() string { return e.message }

// environment is where the values of ${…} come from.
type environment struct {
	lookup       func(string) (string, bool)
	allowMissing bool
}

// substitute fills in ${VAR}, ${VAR:-default}, ${VAR:?message}, ${file:/path} and $$; a $ before anything else is
// itself. What was filled in is not looked at again. All faults are returned.
func (env environment) substitute(text string) (s substitution, faults []*substitutionError) {
	if !strings.Contains(text, "$") {
		return substitution{text: text}, nil
	}
	var b strings.Builder
	for i := 0; i < len(text); {
		switch {
		case strings.HasPrefix(text[i:], "$$"):
			b.WriteByte('$')
			i += 2
		case strings.HasPrefix(text[i:], "${"):
			n := strings.IndexByte(text[i:], '}')
			if n < 0 {
				return s, append(faults, &substitutionError{
					code: CodeBadSubstitution, message: `"${" has no "}"`, hint: `write "$$" for a dollar sign that stands for itself`,
					offset: i, open: true,
				})
			}
			value, known, err := env.expand(text[i+2 : i+n])
			if err == nil && !utf8.ValidString(value) {
				err = &substitutionError{code: CodeNotUTF8, message: "what ${…} stands for here is not UTF-8 text"}
			}
			if err != nil {
				err.offset = i
				faults = append(faults, err)
			}
			s.changed = true
			s.unknown = s.unknown || !known
			b.WriteString(value)
			i += n + 1
		default:
			b.WriteByte(text[i])
			i++
		}
	}
	s.text = b.String()
	return s, faults
}

var (
	variableForm = regexp.MustCompile(`(?s)^([A-Za-z_][A-Za-z0-9_]*)(?::([-?])(.*))?$`)
	shellForm    = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)([-?+=])`)
)

// expand returns what one ${expr} stands for. known is false if it is missing and env tolerates that.
func (env environment) expand(expr string) (value string, known bool, _ *substitutionError) {
	bad := func(hint, format string, a ...any) (string, bool, *substitutionError) {
		return "", true, &substitutionError{code: CodeBadSubstitution, message: fmt.Sprintf(format, a...), hint: hint}
	}
	if strings.Contains(expr, "${") {
		return bad("", "a ${…} inside another is not supported")
	}
	if path, ok := strings.CutPrefix(expr, "file:"); ok && !strings.HasPrefix(path, "-") && !strings.HasPrefix(path, "?") {
		if !filepath.IsAbs(path) {
			return bad("write ${file:/absolute/path}", "${file:%s}: the path is not absolute", path)
		}
		content, err := readSmall(path)
		switch {
		case err == nil:
			return trimNewline(content), true, nil
		case env.allowMissing:
			return "", false, nil
		}
		return "", true, &substitutionError{code: CodeUnsetVariable, message: fmt.Sprintf("${%s}: %s", expr, reason(err))}
	}
	m := variableForm.FindStringSubmatch(expr)
	if m == nil {
		if s := shellForm.FindStringSubmatch(expr); s != nil && s[2] != "+" && s[2] != "=" {
			// The rest may be a default that is secret.
			return bad(fmt.Sprintf("did you mean ${%s:%s…}?", s[1], s[2]), "${%s%s…} is not a substitution", s[1], s[2])
		}
		return bad(`use ${VAR}, ${VAR:-default}, ${VAR:?message} or ${file:/path}; "$$" is a dollar sign`, "this ${…} is not a substitution")
	}
	name, operator, operand := m[1], m[2], m[3]
	value, ok := env.lookup(name)
	switch {
	case operator == "" && ok, operator != "" && value != "":
		return value, true, nil
	case operator == "-":
		return operand, true, nil
	case env.allowMissing:
		return "", false, nil
	case operator == "?" && operand != "":
		return "", true, &substitutionError{code: CodeUnsetVariable, message: fmt.Sprintf("the variable %s is not set: %s", name, operand)}
	}
	return "", true, &substitutionError{
		code: CodeUnsetVariable, message: fmt.Sprintf("the variable %s is not set", name),
		hint: fmt.Sprintf("set it, or give a default: ${%s:-default}", name),
	}
}

// trimNewline takes one line break off the end: most editors and `kubectl create secret` add one.
func trimNewline(s string) string {
	return strings.TrimSuffix(strings.TrimSuffix(s, "\n"), "\r")
}

func readSmall(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSubstitutedFile+1))
	if err != nil {
		return "", err
	}
	if len(b) > maxSubstitutedFile {
		return "", fmt.Errorf("the file is larger than %d bytes", maxSubstitutedFile)
	}
	return string(b), nil
}

// reason is what went wrong with a file, without its path, which the message has already.
func reason(err error) string {
	if pe, ok := errors.AsType[*os.PathError](err); ok {
		return pe.Err.Error()
	}
	return err.Error()
}
