package outbox

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/relevo-io/relevo/sdk"
)

// Gap is a stored position from which there is no safe way on: what the server has may not be what the position was taken
// from. Going on could leave events out, so a person decides. The word for it is bound to this very position and server: it
// can stay in the configuration, and says nothing about another gap.
type Gap struct {
	Position []byte
	Server   string // what names the server's history: the same for each look at it, another one after a further accident
	Reason   string // completes "the stored position cannot be used: …"
	Hint     string // what to look into first; "": nothing
}

func (g *Gap) Error() string { return "the stored position cannot be used: " + g.Reason }

// Token is the word that accepts the gap.
func (g *Gap) Token() string {
	h := sha256.New()
	fmt.Fprintf(h, "relevo/gap/1\n%d\n%s\n%s", len(g.Position), g.Position, g.Server)
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// Config is the gap as an error of class CONFIG.
func (g *Gap) Config() *sdk.Error {
	hint := g.Hint
	if hint != "" {
		hint += "; "
	}
	hint += fmt.Sprintf("to drop the position and start as backlog says (publish: with every row that there is; skip: with what commits from then on) "+
		"write accept_gap: %q", g.Token())
	return sdk.Config(g).WithCode("position_gap").WithHint(hint)
}
