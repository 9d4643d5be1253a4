package sdk

import "errors"

// Class says what an error means for what the host tries next.
type Class int

// Classes of errors, as in the protocol's ErrorClass.
const (
	ClassTransient Class = 1 // may succeed later; also every unknown outcome
	ClassPermanent Class = 2 // of an event: never will succeed; of a stream: only a person can decide how to go on
	ClassConfig    Class = 3 // a person must change a configuration, here or at the server
)

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

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// ErrorOf returns err as an *Error: itself, one that it wraps, or a transient one around it.
func ErrorOf(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return &Error{Class: e.Class, Code: e.Code, Hint: e.Hint, Err: err}
	}
	return Transient(err)
}
