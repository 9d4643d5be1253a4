package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// ConfigError is one thing that is wrong with a configuration. A Validate method may return one, or several joined, to
// say where; any other error has no place.
type ConfigError struct {
	Path    string // JSON pointer: "/columns/order"; "": the whole
	Message string // without the path
}

func (e *ConfigError) Error() string {
	if e.Path == "" {
		return e.Message
	}
	return e.Path + ": " + e.Message
}

// DecodeConfig decodes a configuration, a JSON object, over the defaults (nil: the zero C), and calls its Validate
// method if it has one. It is strict: a key that C does not have, a key that is written twice or in another case, and a
// missing one that is tagged `jsonschema:"required"` are errors. It reports all faults, joined, each a *ConfigError.
// null leaves the default, except for pointers, slices and maps, which it empties.
//
// Faults never quote a value of a Secret, nor of anything but sizes, durations and names.
func DecodeConfig[C any](data []byte, defaults func() C) (C, error) {
	var c C
	if defaults != nil {
		c = defaults()
	}
	if len(bytes.TrimSpace(data)) == 0 {
		data = []byte("{}")
	}
	if !json.Valid(data) {
		return c, &ConfigError{Message: "is not JSON"}
	}
	var d decoder
	d.value("", data, reflect.ValueOf(&c).Elem())
	if len(d.faults) == 0 {
		if v, ok := any(&c).(interface{ Validate() error }); ok {
			if err := v.Validate(); err != nil {
				d.faults = append(d.faults, flatten(err)...)
			}
		}
	}
	return c, errors.Join(d.faults...)
}

// flatten takes joined errors apart, and makes each a *ConfigError.
func flatten(err error) []error {
	if e, ok := err.(*ConfigError); ok { //nolint:errorlint // one that is wrapped keeps its text, below
		return []error{e}
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	if e, ok := errors.AsType[*ConfigError](err); ok {
		return []error{&ConfigError{Path: e.Path, Message: err.Error()}}
	}
	return []error{&ConfigError{Message: err.Error()}}
}

// decodeOpen decodes the configuration of an Open.
func decodeOpen[C any](spec Spec[C], data []byte) (C, error) {
	c, err := DecodeConfig(data, spec.Defaults)
	if err != nil {
		return c, Config(fmt.Errorf("configuration: %w", err)).WithCode(codeConfigInvalid)
	}
	return c, nil
}

const codeConfigInvalid = "config_invalid"
