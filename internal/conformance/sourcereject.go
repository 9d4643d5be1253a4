package conformance

import (
	"context"
	"fmt"
	"slices"
)

// rejectsRows puts rows among usual ones that can't be made into events. They come as Rejected, again after kill -9, and
// no more once they were acked: the host has decided what becomes of them.
func rejectsRows(ctx context.Context, r *attempt) error {
	const bad, good = 3, 6
	p, s, err := r.connectedSource(ctx, sourceOptions{})
	if err != nil {
		return err
	}
	if r.canPutRejected() {
		if err := r.put(ctx, good); err != nil {
			return err
		}
		r.try("put %d rows that can't be made into events", bad)
		if err := r.putRejected(ctx, bad, good); err != nil {
			return err
		}
		if err := r.put(ctx, good); err != nil {
			return err
		}
		if err := s.rejects(ctx, bad, good); err != nil {
			return err
		}
	} else if err := s.rejectsByItself(ctx, r); err != nil {
		return err
	}
	was := s.rejected()
	p.kill()
	r.try("killed the process, opened another stream")
	p, s, err = r.connectedSource(ctx, sourceOptions{position: s.lastPosition()})
	if err != nil {
		return err
	}
	if err := s.until(ctx, "the rejected rows, which were not acked", func() bool { return s.missingRejected(was) == "" }); err != nil {
		s.look(func() { err = fmt.Errorf("%w; %q has not come again", err, s.missingRejected(was)) })
		return err
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	if err := s.stop(ctx); err != nil {
		return err
	}
	done := s.ids(func(r *reading) bool { return r.rejected && r.standing == acked })
	p.kill()
	r.try("acked them, opened a third")
	_, s, err = r.fed(ctx, sourceOptions{position: s.lastPosition()})
	if err != nil {
		return err
	}
	if err := s.reads(ctx, good); err != nil {
		return err
	}
	for _, id := range s.rejected() {
		if slices.Contains(done, id) {
			return fmt.Errorf("the rejected row %q was acked, and came again", id)
		}
	}
	if err := s.ackAll(); err != nil {
		return err
	}
	r.saw("they came as Rejected, again before they were acked and not after; their neighbours came too")
	return s.stop(ctx)
}

// rejects waits for rejected rows and, behind the first of them, other events.
func (s *sourceStream) rejects(ctx context.Context, bad, good int) error {
	return s.until(ctx, fmt.Sprintf("%d rejected rows and %d events behind them", bad, good), func() bool {
		isBad, isGood := 0, 0
		for _, r := range s.readings {
			switch {
			case r.rejected:
				isBad++
			case isBad > 0:
				isGood++
			}
		}
		return isBad >= bad && isGood >= good
	})
}

// rejectsByItself looks for rejected rows in what a source has that nobody puts anything in.
func (s *sourceStream) rejectsByItself(ctx context.Context, r *attempt) error {
	if r.canPut() || r.noEvents != nil {
		return needs("put_rejected")
	}
	r.try("read %d events", someEvents)
	if err := s.reads(ctx, someEvents); err != nil {
		return err
	}
	if len(s.rejected()) == 0 {
		return needs("put_rejected")
	}
	return nil
}

// rejected lists the rows that came as Rejected.
func (s *sourceStream) rejected() []string {
	return s.ids(func(r *reading) bool { return r.rejected })
}

// missingRejected is one of ids that has not come as Rejected. Called under the lock.
func (s *sourceStream) missingRejected(ids []string) string {
	var rejected []*reading
	for _, r := range s.readings {
		if r.rejected {
			rejected = append(rejected, r)
		}
	}
	return missing(ids, rejected)
}
