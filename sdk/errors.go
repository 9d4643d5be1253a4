package sdk

import (
	"errors"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// Class says what an error means for what the host tries next.
type Class int

// Classes of errors, as in the protocol's ErrorClass.
const (
	ClassTransient Class = 1 // may succeed later; also every unknown outcome
	ClassPermanent Class = 2 // of an event: never will succeed; of a stream: only a person can decide how to go on
	ClassConfig    Class = 3 // a person must change a configuration, here or at the server
)

// String is the class's name, and the code of an error without one.
func (c Class) String() string {
	switch c {
	case ClassPermanent:
		return "permanent"
	case ClassConfig:
		return "config"
	}
	return "transient"
}

func (c Class) proto() pluginv1.ErrorClass {
	switch c {
	case ClassPermanent:
		return pluginv1.ErrorClass_ERROR_CLASS_PERMANENT
	case ClassConfig:
		return pluginv1.ErrorClass_ERROR_CLASS_CONFIG
	}
	return pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT
}

// Error is an error with its class. An error of any other type is transient.
type Error struct {
	Class Class
	Code  string // snake_case, stable; "" becomes the class's name
	Hint  string // what to do about it
	Err   error
}

// Transient marks an error that may go away by itself.
func Transient(err error) *Error { return &Error{Class: ClassTransient, Err: err} }

// Permanent marks an event that will never be accepted as it is, or a stream that only a person can mend.
func Permanent(err error) *Error { return &Error{Class: ClassPermanent, Err: err} }

// Config marks what a person must change in a configuration, here or at the server.
func Config(err error) *Error { return &Error{Class: ClassConfig, Err: err} }

// WithCode sets the code and returns e.
func (e *Error) WithCode(code string) *Error { e.Code = code; return e }

// WithHint sets the hint and returns e.
func (e *Error) WithHint(hint string) *Error { e.Hint = hint; return e }

func (e *Error) Error() string {
	if e.Err == nil {
		return e.code()
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func (e *Error) code() string {
	if e.Code == "" {
		return e.Class.String()
	}
	return e.Code
}

// ErrorOf returns err as an *Error: itself, one that it wraps, or a transient one around it.
func ErrorOf(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return &Error{Class: e.Class, Code: e.Code, Hint: e.Hint, Err: err}
	}
	return Transient(err)
}

// faultOf is the last message of a stream that ends with err.
func faultOf(err error) *pluginv1.Fault {
	e := ErrorOf(err)
	return &pluginv1.Fault{Class: e.Class.proto(), Code: text(e.code()), Message: text(e.Error()), Hint: text(e.Hint)}
}
