package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// ProtocolError says that a plugin sent something that the protocol does not allow. I6: that is a bug in the plugin; the
// attempt ends, and nothing is guessed.
type ProtocolError struct {
	Plugin string // the name of its executable: kind-name
	Err    error
}

func (e *ProtocolError) Error() string {
	return fmt.Sprintf("%s broke the plugin protocol (a bug in the plugin): %v", e.Plugin, e.Err)
}

// Unwrap returns what is wrong.
func (e *ProtocolError) Unwrap() error { return e.Err }

// ReadStream is one attempt at reading a source. One goroutine may send while another receives.
type ReadStream struct{ stream }

// Read opens the stream and sends Open. ctx is the life of the stream: ending it cuts the stream, and a stream that is
// not read to its end must be cut.
func (p *Process) Read(ctx context.Context, open *pluginv1.SourceOpen) (*ReadStream, error) {
	s, err := p.open(ctx, &pluginv1.SourceService_ServiceDesc.Streams[0], pluginv1.SourceService_Read_FullMethodName,
		&pluginv1.ReadRequest{Message: &pluginv1.ReadRequest_Open{Open: open}})
	if err != nil {
		return nil, fmt.Errorf("open read stream: %w", err)
	}
	return &ReadStream{s}, nil
}

// Send sends one request. It can block while the plugin does not read; the end of the stream's context frees it.
// io.EOF: the stream has ended, and Recv says why.
func (s *ReadStream) Send(r *pluginv1.ReadRequest) error { return s.raw.SendMsg(r) }

// Recv returns the next batch, with its envelope decoded, or any other response. io.EOF: the plugin ended the stream. A
// *ProtocolError: it sent nonsense. Any other error is gRPC's status.
func (s *ReadStream) Recv() (*wire.Batch, *pluginv1.ReadResponse, error) {
	for {
		var f wire.Frame
		if err := s.raw.RecvMsg(&f); err != nil {
			return nil, nil, err
		}
		if body, ok := wire.BatchOf(f.Data); ok {
			return s.batch(body)
		}
		r := &pluginv1.ReadResponse{}
		if err := s.decode(f.Data, r); err != nil {
			return nil, nil, err
		}
		switch m := r.GetMessage().(type) {
		case nil:
			continue // a message that a later version added
		case *pluginv1.ReadResponse_Batch: // with something beside it that a later version added
			body, err := proto.Marshal(m.Batch)
			if err != nil {
				return nil, nil, s.nonsense(err)
			}
			return s.batch(body)
		}
		return nil, r, nil
	}
}

func (s *ReadStream) batch(body []byte) (*wire.Batch, *pluginv1.ReadResponse, error) {
	b, err := wire.ParseBatch(body)
	if err != nil {
		return nil, nil, s.nonsense(err)
	}
	return b, nil, nil
}

// WriteStream is one attempt at writing to a sink. One goroutine may send while another receives.
type WriteStream struct{ stream }

// Write opens the stream and sends Open. ctx is the life of the stream: ending it cuts the stream, and a stream that is
// not read to its end must be cut.
func (p *Process) Write(ctx context.Context, open *pluginv1.SinkOpen) (*WriteStream, error) {
	s, err := p.open(ctx, &pluginv1.SinkService_ServiceDesc.Streams[0], pluginv1.SinkService_Write_FullMethodName,
		&pluginv1.WriteRequest{Message: &pluginv1.WriteRequest_Open{Open: open}})
	if err != nil {
		return nil, fmt.Errorf("open write stream: %w", err)
	}
	return &WriteStream{s}, nil
}

// Send sends one request. io.EOF: the stream has ended, and Recv says why.
func (s *WriteStream) Send(r *pluginv1.WriteRequest) error { return s.raw.SendMsg(r) }

// SendFrame sends an encoded WriteRequest (wire.SinkBatch.Request). Its memory must not change any more: gRPC may write
// it out after SendFrame has returned. io.EOF: the stream has ended, and Recv says why.
func (s *WriteStream) SendFrame(f *wire.Frame) error { return s.raw.SendMsg(f) }

// Recv returns the next response. io.EOF: the plugin ended the stream. A *ProtocolError: it sent nonsense. Any other
// error is gRPC's status.
func (s *WriteStream) Recv() (*pluginv1.WriteResponse, error) {
	for {
		var f wire.Frame
		if err := s.raw.RecvMsg(&f); err != nil {
			return nil, err
		}
		r := &pluginv1.WriteResponse{}
		if err := s.decode(f.Data, r); err != nil {
			return nil, err
		}
		if r.GetMessage() != nil {
			return r, nil
		} // else a message that a later version added
	}
}

// stream is what both kinds share.
type stream struct {
	plugin string
	raw    grpc.ClientStream
}

func (p *Process) open(ctx context.Context, desc *grpc.StreamDesc, method string, open proto.Message) (stream, error) {
	raw, err := p.conn.NewStream(ctx, desc, method)
	if err != nil {
		return stream{}, err
	}
	if err := raw.SendMsg(open); err != nil {
		if errors.Is(err, io.EOF) { // the stream has ended already; its status says why
			if serr := raw.RecvMsg(&wire.Frame{}); serr != nil {
				err = serr
			}
		}
		return stream{}, err
	}
	return stream{p.name, raw}, nil
}

func (s stream) decode(data []byte, to proto.Message) error {
	if len(data) == 0 {
		return s.nonsense(errors.New("an empty message"))
	}
	if err := proto.Unmarshal(data, to); err != nil {
		return s.nonsense(err)
	}
	return nil
}

func (s stream) nonsense(err error) error { return &ProtocolError{Plugin: s.plugin, Err: err} }
