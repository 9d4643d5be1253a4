package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Codes of diagnostics. They are stable: scripts and CI matchers may rely on them.
const (
	CodeYAMLSyntax            = "yaml_syntax"
	CodeUnsupportedYAML       = "unsupported_yaml" // merge keys, tags, keys that are no text, …
	CodeUnquotedPlaceholder   = "unquoted_placeholder"
	CodeNotUTF8               = "not_utf8"
	CodeFileUnreadable        = "file_unreadable"
	CodeNoPipelines           = "no_pipelines"
	CodeDuplicateKey          = "duplicate_key"
	CodeUnknownKey            = "unknown_key"
	CodeNotInThisVersion      = "not_in_this_version"
	CodeMissingKey            = "missing_key"
	CodeWrongType             = "wrong_type"
	CodeBadValue              = "bad_value"
	CodeBadSubstitution       = "bad_substitution"
	CodeUnsetVariable         = "unset_variable"
	CodeBadName               = "bad_name"
	CodeDuplicatePipeline     = "duplicate_pipeline"
	CodeDuplicateSink         = "duplicate_sink"
	CodeSameTable             = "same_table"
	CodeSameSlot              = "same_slot"
	CodeBadDestination        = "bad_destination"
	CodeDestinationMissing    = "destination_missing"
	CodeDestinationNotAllowed = "destination_not_allowed"
	CodeDestinationTooLong    = "destination_too_long"
	CodePluginNotFound        = "plugin_not_found"
	CodePluginBroken          = "plugin_broken"
)

// Diagnostic is one fault in what a person wrote, with its place.
type Diagnostic struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`   // from 1; 0: the whole file
	Column  int    `json:"column,omitempty"` // in characters, from 1
	Code    string `json:"code"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"` // the next step

	source string // the line, secrets masked
}

// Error is the one-line form, which editors and CI matchers parse.
func (d Diagnostic) Error() string {
	return fmt.Sprintf("%serror: %s [%s]", d.place(), d.Message, d.Code)
}

// place is "file:line:col: ", as far as it is known.
func (d Diagnostic) place() string {
	switch {
	case d.File == "":
		return ""
	case d.Line == 0:
		return d.File + ": "
	}
	return fmt.Sprintf("%s:%d:%d: ", d.File, d.Line, d.Column)
}

// Diagnostics are all faults of one Load, by file and place. Empty means that there is none.
type Diagnostics []Diagnostic

// Error joins the one-line forms.
func (ds Diagnostics) Error() string {
	lines := make([]string, len(ds))
	for i, d := range ds {
		lines[i] = d.Error()
	}
	return strings.Join(lines, "\n")
}

// Err is ds as an error, nil if it is empty.
func (ds Diagnostics) Err() error {
	if len(ds) == 0 {
		return nil
	}
	return ds
}

// Environment reports whether every fault is one of the machine and not of what was written: a plugin that is missing
// or does not work.
func (ds Diagnostics) Environment() bool {
	return len(ds) > 0 && !slices.ContainsFunc(ds, func(d Diagnostic) bool {
		return d.Code != CodePluginNotFound && d.Code != CodePluginBroken
	})
}

// sorted orders by file as first seen, then by place, and drops repeats.
func (ds Diagnostics) sorted() Diagnostics {
	order := map[string]int{}
	for _, d := range ds {
		if _, ok := order[d.File]; !ok {
			order[d.File] = len(order)
		}
	}
	slices.SortStableFunc(ds, func(a, b Diagnostic) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return slices.CompactFunc(ds, func(a, b Diagnostic) bool {
		return a.place() == b.place() && a.Code == b.Code && a.Message == b.Message
	})
}
