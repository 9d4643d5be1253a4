// Package outbox is the outbox row, as both PostgreSQL sources see it: which column is what (Columns, presets), what the
// table in the database is like (Inspect), and how a row becomes an event (Layout).
//
// The way is always Columns → Mapping → Bind(Table) → Layout. What a user has to change comes as a *Problem, which names
// the key of the configuration and, where there is one, the SQL that mends it.
package outbox

import (
	"fmt"

	"github.com/relevo-io/relevo/sdk"
)

// Problem is what a person must change, in the configuration or at the server.
type Problem struct {
	Code    string // snake_case, stable
	Path    string // JSON pointer into the source's configuration; "": no one key
	Message string
	Hint    string
	SQL     string // mends it; "": nothing does
}

func (p *Problem) Error() string { return p.Message }

// Config is the problem as an error of class CONFIG.
func (p *Problem) Config() *sdk.Error {
	hint := p.Hint
	if p.SQL != "" {
		hint += fmt.Sprintf("; SQL: %s", p.SQL)
	}
	return sdk.Config(p).WithCode(p.Code).WithHint(hint)
}

// Finding is the problem as a doctor shows it.
func (p *Problem) Finding() sdk.Finding {
	return sdk.Finding{Severity: sdk.Problem, Code: p.Code, Path: p.Path, Message: p.Message, Hint: p.Hint, SQL: p.SQL}
}
