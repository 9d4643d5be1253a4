package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// sink publishes to a file, and refuses events with the id "refused".
type sink struct {
	pluginv1.UnimplementedSinkServiceServer
	streams int // one is open at a time
}

type (
	answer = *pluginv1.WriteResponse
	ranges = []*pluginv1.SeqRange
)

func (s *sink) Write(stream pluginv1.SinkService_WriteServer) error {
	if s.streams++; s.streams > 1 && bug == "serves-one-stream" {
		return errors.New("one stream is enough")
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	var config map[string]any
	if err := json.Unmarshal(m.GetOpen().GetConfig(), &config); err != nil {
		return err
	}
	file, _ := config["target"].(string)
	delete(config, "target")
	for key := range config {
		if f := configFault(fmt.Sprintf("there is no key %q", key)); f != nil {
			return stream.Send(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Fault{Fault: f}})
		}
	}
	t, err := openTarget(file)
	if err != nil {
		if f := awayFault(err); f != nil {
			return stream.Send(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Fault{Fault: f}})
		}
	}
	out := &outbox[answer]{more: make(chan struct{}, 1)}
	w := &writing{target: t, say: out.put, failed: map[string]bool{}, gone: stream.Context().Done()}
	sent := make(chan error, 1)
	if bug == "answers-while-reading" {
		w.say = func(a answer) { _ = stream.Send(a) }
		sent <- nil
	} else {
		go func() { sent <- out.sendAll(stream.Send) }()
	}
	if bug == "acks-before-opened" {
		w.ack(1)
	}
	w.say(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Opened{Opened: &pluginv1.SinkOpened{KeepsOrder: true}}})
	err = w.obey(stream)
	w.waiting.Wait()
	out.close()
	err = errors.Join(err, <-sent)
	return err
}

// writing is one stream.
type writing struct {
	target *target
	say    func(answer)
	failed map[string]bool // keys
	held   []uint64        // acks that a bug keeps back

	queue   queue          // while the target is away
	waiting sync.WaitGroup // for it to come back
	gone    <-chan struct{}
}

// take publishes an event and acks it.
func (w *writing) take(seq uint64, e *pluginv1.Event) error {
	switch {
	case bug == "acks-before-publishing":
		w.target.later(e.GetId())
	case bug == "loses-quietly" && seq%7 == 0:
	case bug == "invents":
		if err := w.target.publish(e.GetId(), e.GetId()+"-copy"); err != nil {
			return err
		}
	default:
		if err := w.target.publish(e.GetId()); err != nil {
			return err
		}
	}
	w.ack(seq)
	if bug == "acks-twice" {
		w.ack(seq)
	}
	return nil
}

func (w *writing) ack(first uint64) { w.ackRange(first, first) }

func (w *writing) ackRange(first, last uint64) {
	a := &pluginv1.SinkAck{Ranges: ranges{{First: first, Last: last}}}
	w.say(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Ack{Ack: a}})
}

func (w *writing) giveBack(seq uint64) {
	w.say(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Returned{Returned: &pluginv1.Returned{Ranges: ranges{{First: seq, Last: seq}}}}})
}

func (w *writing) fail(seq uint64) {
	class := pluginv1.ErrorClass_ERROR_CLASS_PERMANENT
	if bug == "refuses-for-now" {
		class = pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT
	}
	w.failAs(seq, class)
}

func (w *writing) failAs(seq uint64, class pluginv1.ErrorClass) {
	w.say(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Failure{Failure: &pluginv1.Failure{Seq: seq, Class: class, Code: "refused", Message: "refused"}}})
}

// obey answers what the host asks until Stop.
func (w *writing) obey(stream pluginv1.SinkService_WriteServer) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		switch m := m.GetMessage().(type) {
		case *pluginv1.WriteRequest_Batch:
			if err := w.batch(m.Batch); err != nil {
				return err
			}
		case *pluginv1.WriteRequest_Release:
			for _, k := range m.Release.GetKeys() {
				if bug != "ignores-release" {
					delete(w.failed, string(k))
				}
			}
		case *pluginv1.WriteRequest_Stop:
			w.waiting.Wait()
			if bug == "hangs-on-stop" {
				<-stream.Context().Done()
			}
			w.say(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Stopped{Stopped: &pluginv1.Stopped{}}})
			if bug == "stops-before-the-end" {
				for _, seq := range w.held {
					w.ack(seq)
				}
			}
			if bug == "stays-after-stopped" {
				<-stream.Context().Done()
			}
			return nil
		}
	}
}

// batch ends every number of a batch.
func (w *writing) batch(b *pluginv1.Batch) error {
	switch {
	case bug == "reorders":
		for i := len(b.GetEvents()) - 1; i >= 0; i-- {
			w.ack(b.GetFirstSeq() + uint64(i))
		}
		return nil
	case bug == "publishes-in-reverse":
		for _, e := range slices.Backward(b.GetEvents()) {
			if err := w.target.publish(e.GetId()); err != nil {
				return err
			}
		}
		w.ackRange(b.GetFirstSeq(), b.GetFirstSeq()+uint64(b.GetCount())-1)
		return nil
	case bug == "stops-before-the-end":
		for i := range b.GetEvents() {
			w.held = append(w.held, b.GetFirstSeq()+uint64(i))
		}
		return nil
	case bug == "acks-what-was-not-sent":
		w.ackRange(b.GetFirstSeq(), b.GetFirstSeq()+1_000_000)
		return nil
	case bug == "drops-at-sigterm" && terminated.Load():
		return nil
	case bug == "stops-at-sigterm" && terminated.Load():
		w.say(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Stopped{Stopped: &pluginv1.Stopped{}}})
		return nil
	}
	for i, e := range b.GetEvents() {
		if err := w.event(b.GetFirstSeq()+uint64(i), e); err != nil {
			return err
		}
	}
	return nil
}

func (w *writing) event(seq uint64, e *pluginv1.Event) error {
	key := string(e.GetKey())
	keyed := key != "" || bug == "takes-no-key-for-a-key"
	switch {
	case keyed && w.failed[key]:
		return w.behindFailed(seq, e)
	case e.GetId() == "refused":
		if bug == "publishes-what-it-refuses" {
			if err := w.target.publish(e.GetId()); err != nil {
				return err
			}
		}
		if keyed {
			w.failed[key] = true
		}
		w.fail(seq)
		if bug == "ends-failures-twice" {
			w.giveBack(seq)
		}
	case bug == "loses-one" && seq%7 == 0:
	case bug == "returns-without-reason" && seq%7 == 0:
		w.giveBack(seq)
	case bug == "chokes-on-tombstones" && e.Payload == nil:
		panic("no payload")
	case down() || !w.queue.empty():
		w.away(seq, e)
	default:
		return w.take(seq, e)
	}
	return nil
}

// behindFailed answers for an event of a key that has failed.
func (w *writing) behindFailed(seq uint64, e *pluginv1.Event) error {
	switch bug {
	case "forgets-returned":
	case "goes-on-behind-a-failure":
		return w.take(seq, e)
	case "fails-what-is-behind":
		w.fail(seq)
	case "publishes-what-it-returns":
		w.giveBack(seq)
		return w.target.publish(e.GetId())
	default:
		w.giveBack(seq)
	}
	return nil
}

// away answers for an event while the target is away: it waits for it, or fails it for now as a simple sink does.
func (w *writing) away(seq uint64, e *pluginv1.Event) {
	switch bug {
	case "acks-while-down":
		w.ack(seq)
	case "gives-up-while-down":
		w.failed[string(e.GetKey())] = true
		w.failAs(seq, pluginv1.ErrorClass_ERROR_CLASS_PERMANENT)
	case "fails-while-down": // no bug
		w.failed[string(e.GetKey())] = true
		w.failAs(seq, pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT)
	default:
		w.say(&pluginv1.WriteResponse{Message: &pluginv1.WriteResponse_Status{Status: &pluginv1.SinkStatus{State: pluginv1.SinkState_SINK_STATE_DOWN}}})
		if w.queue.add(seq, e) {
			w.waiting.Go(func() { _ = w.queue.flush(w.gone, w.back) }) // its error is the end of the stream
		}
	}
}

// back publishes what has waited for the target.
func (w *writing) back(all []waiting) error {
	if bug == "forgets-while-down" {
		return nil
	}
	if bug == "reorders-what-waited" {
		for _, x := range slices.Backward(all) {
			if err := w.target.publish(x.event.GetId()); err != nil {
				return err
			}
		}
		w.ackRange(all[0].seq, all[len(all)-1].seq)
		return nil
	}
	for _, x := range all {
		if err := w.take(x.seq, x.event); err != nil {
			return err
		}
	}
	return nil
}
