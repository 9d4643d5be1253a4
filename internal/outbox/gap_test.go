package outbox

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/sdk"
)

// The word of a gap is the same at each look, and another one for another position or another server. What a message says
// may change with a version, and the word does not.
func TestGap(t *testing.T) {
	t.Parallel()
	g := Gap{Position: []byte("p"), Server: "7 1", Reason: "it is of another cluster"}
	require.Equal(t, "2a4140cb", g.Token(), "it stands in configurations")
	other := g
	other.Reason = "said in other words"
	require.Equal(t, g.Token(), other.Token())
	other.Position = []byte("q")
	require.NotEqual(t, g.Token(), other.Token())
	other = g
	other.Server = "7 2"
	require.NotEqual(t, g.Token(), other.Token())
	// No position and server can be cut in another place.
	require.NotEqual(t, (&Gap{Position: []byte("a\nb"), Server: "c"}).Token(), (&Gap{Position: []byte("a"), Server: "b\nc"}).Token())

	e := g.Config()
	require.Equal(t, sdk.ClassConfig, e.Class)
	require.Equal(t, "position_gap", e.Code)
	require.Contains(t, e.Hint, `accept_gap: "`+g.Token()+`"`)
}

func TestTxColumn(t *testing.T) {
	t.Parallel()
	text := func(s string) *string { return &s }
	m, err := Map("", &Columns{Tx: text("tx")})
	require.NoError(t, err)
	for code, c := range map[string]Column{
		"":                    {Name: "tx", Type: oidXID8, SQLType: "xid8", NotNull: true},
		"tx_nullable":         {Name: "tx", Type: oidXID8, SQLType: "xid8"},
		"tx_type_unsupported": {Name: "tx", Type: oidInt8, SQLType: "bigint", NotNull: true},
		"column_missing":      {Name: "Tx", Type: oidXID8, SQLType: "xid8", NotNull: true},
	} {
		b := binder{l: &Layout{}, m: m, t: &Table{Columns: []Column{c}}}
		b.tx()
		if code == "" {
			require.Empty(t, b.faults)
			require.Equal(t, "tx", b.l.Tx.Name)
			continue
		}
		require.Len(t, b.faults, 1)
		require.Equal(t, code, b.faults[0].Code)
		require.Nil(t, b.l.Tx)
	}
}
