package conformance

import "fmt"

// rule is a sentence of the protocol and the anchor of its place on the page.
type rule struct{ text, anchor string }

// The rules that hold for every process and every stream, whatever a check is about: who breaks one is shown that one.
var (
	startRule    = rule{"The first line on stdout is the handshake, within the start time-out; then the health of \"plugin\" is SERVING.", "handshake"}
	openRule     = rule{"Open is answered with Opened, once, before anything but Status.", "open"}
	numbersRule  = rule{"Numbers are consecutive from 1 on each stream, and every number ends exactly once.", "numbers"}
	orderRule    = rule{"No event is acked before every earlier event of its key on the stream has ended.", "order"}
	failureRule  = rule{"A Failure has a class, a code and a message.", "failures"}
	behindRule   = rule{"What is behind a failed event in its key is returned until Release; nothing else is returned.", "failures"}
	stopRule     = rule{"After Stop every number ends, then Stopped comes within the drain time-out and ends the stream.", "stop"}
	faultRule    = rule{"A plugin that can't go on sends Fault as its last message; a stream that ends without it and without Stopped is a crash.", "faults"}
	eventRule    = rule{"Events are within the limits of the protocol; a row that breaks one is rejected.", "events"}
	sizeRule     = rule{"A batch is cut at 4 MiB; a larger event goes alone.", "sizes"}
	windowRule   = rule{"No more is open than the window allows; a window of bytes admits one event.", "window"}
	positionRule = rule{"A source has positions or not, as Opened says, and sends them in batches and Progress accordingly.", "positions"}
	holdRule     = rule{"What Hold names, Held answers for, and does not come until Release.", "hold"}
	rejectRule   = rule{"A rejected row has its place in the batch, an id for a person, a code and a message.", "rejected-rows"}
)

var streamRules = []rule{
	startRule, openRule, numbersRule, orderRule, failureRule, behindRule, stopRule, faultRule, eventRule, sizeRule, windowRule, positionRule, holdRule, rejectRule,
}

// ruleError is what breaks a rule that is not the one of the check that met it.
type ruleError struct {
	rule rule
	err  error
}

func (e *ruleError) Error() string { return e.err.Error() }
func (e *ruleError) Unwrap() error { return e.err }

// broken makes the error that says how.
func (r rule) broken(format string, a ...any) error {
	return &ruleError{r, fmt.Errorf(format, a...)}
}
