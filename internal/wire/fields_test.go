package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// TestEveryFieldIsKnown fails on a field that was added to the .proto files and not here.
func TestEveryFieldIsKnown(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		message proto.Message
		known   map[protowire.Number]protowire.Type
	}{
		{&pluginv1.Event{}, eventTypes},
		{&pluginv1.Header{}, headerTypes},
		{&pluginv1.Batch{}, batchTypes},
	} {
		fields := c.message.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			f := fields.Get(i)
			typ, ok := c.known[f.Number()]
			if f.Number() == batchDestIndex && f.IsPacked() {
				continue // packed or not
			}
			require.True(t, ok, "%s", f.FullName())
			require.Equal(t, typ, wireType(f.Kind()), "%s", f.FullName())
		}
	}
	for _, m := range []proto.Message{&pluginv1.ReadResponse{}, &pluginv1.WriteRequest{}} {
		f := m.ProtoReflect().Descriptor().Fields().ByNumber(carrierBatch)
		require.Equal(t, "batch", string(f.Name()), "%s", f.FullName())
	}
}

func wireType(k protoreflect.Kind) protowire.Type {
	switch k {
	case protoreflect.StringKind, protoreflect.BytesKind, protoreflect.MessageKind:
		return protowire.BytesType
	case protoreflect.Sfixed64Kind:
		return protowire.Fixed64Type
	}
	return protowire.VarintType
}
