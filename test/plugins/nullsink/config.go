package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/relevo-io/relevo/sdk"
)

// maxMessage admits the largest event.
const maxMessage = 17 << 20

// config of the sink. All of it is optional.
type config struct {
	KeepsOrder bool     `json:"keeps_order" doc:"Take several events of one key at once. Defaults to false: the host sends one event of a key at a time."`
	Record     string   `json:"record" doc:"File to which a line 'seq id key destination' is appended for each accepted event, in the order of acceptance, before it is acked. A key, id or destination that is absent is '-'. Defaults to none."`
	FailKeys   []string `json:"fail_keys" doc:"Keys whose events are refused."`
	FailIDs    []string `json:"fail_ids" doc:"Ids of events that are refused."`
	FailTimes  int      `json:"fail_times" doc:"How many times each of these keys and ids is refused in the life of the process; 0 is for ever. Defaults to 0." jsonschema:"minimum=0"`
	FailUntil  string   `json:"fail_until" doc:"File whose existence ends all refusals. Defaults to none."`
	FailClass  string   `json:"fail_class" doc:"Class of the refusals. Defaults to permanent." jsonschema:"enum=transient,enum=permanent,enum=config"`
	OpenFault  string   `json:"open_fault" doc:"Refuse to open, with an error of this class. Defaults to none." jsonschema:"enum=transient,enum=permanent,enum=config"`
	CrashAfter int      `json:"crash_after" doc:"Exit with status 3 when so many events have been accepted, the last of them not acked; 0 is never. Defaults to 0." jsonschema:"minimum=0"`
	CrashOnID  string   `json:"crash_on_id" doc:"Exit with status 3 when an event of this id arrives. Defaults to none."`
	HangAfter  int      `json:"hang_after" doc:"Ack nothing more once so many events have been accepted; 0 is never. Defaults to 0." jsonschema:"minimum=0"`
	HangOnStop bool     `json:"hang_on_stop" doc:"Never answer Stop. Defaults to false."`
	DownUntil  string   `json:"down_until" doc:"File until whose existence the sink says that its broker is down, and keeps what it gets. Defaults to none."`

	Secret sdk.Secret `json:"secret" doc:"Not used; shows how secrets are masked."`
}

func (c *config) Validate() error {
	for path, class := range map[string]string{"/fail_class": c.FailClass, "/open_fault": c.OpenFault} {
		switch class {
		case "", "transient", "permanent", "config":
		default:
			return &sdk.ConfigError{Path: path, Message: fmt.Sprintf("%q is none of transient, permanent, config", class)}
		}
	}
	return nil
}

var errRefused = errors.New("the null sink was told to refuse this")

// fault makes an error of a class.
func fault(class string) *sdk.Error {
	switch class {
	case "transient":
		return sdk.Transient(errRefused).WithCode("null_refused")
	case "config":
		return sdk.Config(errRefused).WithCode("null_refused").WithHint("take the option out")
	}
	return sdk.Permanent(errRefused).WithCode("null_refused")
}

func check(_ context.Context, c config, _ sdk.CheckRequest) ([]sdk.Finding, error) {
	if c.OpenFault != "" {
		return []sdk.Finding{{
			Severity: sdk.Problem,
			Code:     "open_fault",
			Path:     "/open_fault",
			Message:  "the sink will refuse to open",
			Hint:     "take the option out",
		}}, nil
	}
	return []sdk.Finding{{Severity: sdk.OK, Code: "null", Message: "there is nothing to check"}}, nil
}
