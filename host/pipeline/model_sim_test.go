package pipeline

import (
	"fmt"
)

type effect struct {
	msg  any
	done bool // durable, but the host has not been told
}

func (w *world) store() {
	e := w.effects[0].(*effect)
	if !e.done {
		e.done = true
		switch m := e.msg.(type) {
		case mStorePos:
			if m.Pos < w.durPos {
				mBug("I2", "position goes back from %d to %d", w.durPos, m.Pos)
			}
			for _, r := range w.rows[w.durPos:m.Pos] {
				if !r.noise {
					w.mustBeSettled("I2", r.ev.ID)
				}
			}
			w.durPos = m.Pos
			w.tr("position %d durable", m.Pos)
		case mStoreDiscard:
			w.durDisc[[2]int{m.Sink, m.ID}] = true
			w.discarded[m.Sink][m.ID] = true
		}
		return
	}
	w.effects = w.effects[1:]
	switch m := e.msg.(type) {
	case mStorePos:
		w.host.OnStored(m)
	case mStoreDiscard:
		w.host.OnDiscardStored(m)
	}
	w.flush()
}

type choice struct {
	weight int
	do     func()
}

// choices lists every enabled step. Timers are apart: they never count as work by themselves.
func (w *world) choices() (cs []choice, timers []choice) {
	add := func(n int, f func()) { cs = append(cs, choice{n, f}) }
	timer := func(n int, f func()) { timers = append(timers, choice{n, f}) }
	// broker
	for _, j := range w.answerable() {
		add(3, func() { w.answer(j); w.flush() })
	}
	if w.host == nil {
		add(5, func() {
			w.tr("host starts at %d", w.durPos)
			w.host = newMHost(w)
			w.flush()
		})
	} else {
		w.hostChoices(add, timer)
	}
	// service
	if !w.phase2 && w.nextID < w.events {
		add(6, w.service)
	}
	for _, r := range w.rows {
		if !r.committed {
			add(2, func() { r.committed = true; w.tr("commit %d", r.ev.ID) })
		}
	}
	if !w.phase2 {
		w.faultChoices(add)
	}
	return cs, timers
}

func (w *world) hostChoices(add, timer func(int, func())) {
	h := w.host
	if len(w.fromSrc) > 0 {
		add(4, func() {
			m := w.fromSrc[0]
			w.fromSrc = w.fromSrc[1:]
			switch m := m.(type) {
			case mBatch:
				h.OnBatch(m)
			case mProgress:
				h.OnProgress(m)
			case mHeld:
				w.tr("host gets held %v", m.Lanes)
				h.OnHeld(m)
			case mStopped:
				w.stopped()
			}
			w.flush()
		})
	}
	for i := range w.snk {
		if len(w.fromSink[i]) > 0 {
			add(4, func() {
				m := w.fromSink[i][0]
				w.fromSink[i] = w.fromSink[i][1:]
				w.tr("host gets from sink %d: %T%v", i, m, m)
				switch m := m.(type) {
				case mAck:
					h.OnAck(i, m)
				case mFailure:
					h.OnFailure(i, m)
				case mReturned:
					h.OnReturned(i, m)
				}
				w.flush()
			})
		}
		if len(w.toSink[i]) > 0 {
			add(4, func() {
				m := w.toSink[i][0]
				w.toSink[i] = w.toSink[i][1:]
				w.sinkGets(i, m)
			})
		}
		if p := w.snk[i]; p != nil && !w.down[i] {
			for _, j := range w.offerable(p) {
				add(2, func() { w.offer(p, j) })
			}
		}
		if w.sinkOpenDue[i] {
			add(3, func() {
				w.sinkOpenDue[i] = false
				w.openSink(i)
				h.OnSinkOpened(i, w.set.Sinks[i].KeepsOrder)
				w.flush()
			})
		}
		for _, l := range h.lanes() {
			la := h.Ledger.sinks[i].lanes[h.hash(l)]
			if la == nil || la.gate == nil {
				continue
			}
			if !la.gate.due && la.fail != nil {
				timer(1, func() {
					w.tr("retry due %s at sink %d", l, i)
					h.OnRetryDue(i, h.hash(l), la.fail.Attempts)
					w.flush()
				})
			}
			if la.fail != nil && h.held[h.hash(l)] == nil && h.holdsKeys && len(h.held) < h.rules.MaxHeld && !w.noHold && h.sourceOpen && h.mayHold(h.hash(l)) {
				timer(1, func() { w.tr("failing long %s", l); h.OnFailingLong(i, h.hash(l), la.fail.Attempts); w.flush() })
			}
		}
		if h.down(i) && h.Ledger.sinks[i].waiting {
			timer(1, func() { w.tr("probe due at sink %d", i); h.OnProbeDue(i); w.flush() })
		}
	}
	for _, l := range h.lanes() {
		if x := h.held[h.hash(l)]; x != nil && h.sourceOpen && x.head == 0 && !x.due {
			timer(1, func() { w.tr("held retry due %s", l); h.OnHeldRetryDue(h.hash(l)); w.flush() })
		}
	}
	if w.srcOpen != nil {
		add(3, func() {
			m := *w.srcOpen
			w.srcOpen = nil
			w.openSource(m)
			h.OnSourceOpened(w.set.HoldsKeys, w.set.Positions)
			w.flush()
		})
	}
	if len(w.effects) > 0 {
		add(4, w.store)
	}
	if h.settling {
		add(1, func() { w.tr("drain time-out"); h.OnDrainTimeout(); w.flush() })
	}
	if s := w.src; s != nil {
		if rs := w.readable(); len(rs) > 0 {
			room := w.set.Window - len(s.out)
			if w.set.Positions {
				room = w.set.Window - (s.next - 1 - s.through)
			}
			if room > 0 || rs[0].noise || w.is("source-ignores-window") {
				add(4, func() { w.sourceRead(rs) })
			}
		}
		if len(w.toSrc) > 0 {
			add(4, func() {
				m := w.toSrc[0]
				w.toSrc = w.toSrc[1:]
				w.sourceGets(m)
			})
		}
		if w.pendingUpstream() {
			add(2, w.effectUpstream)
		} else if s.stop && w.stopping {
			w.stopping = false
			w.fromSrc = append(w.fromSrc, mStopped{})
		}
	}
}

// stopped: the end of a graceful stop.
func (w *world) stopped() {
	clean := w.host.events == 0 && len(w.host.held) == 0
	exp := w.exposure()
	w.tr("STOPPED clean=%v exposure=%d", clean, exp)
	left := 0
	for i := range w.life {
		for id := range w.life[i] {
			if r := w.byID(id); !r.deleted && !(w.set.Positions && r.pos <= w.confirmed) {
				left++
			}
		}
	}
	if clean && left > 0 {
		mBug("graceful", "after a completed drain %d events will be repeated", left)
	}
	// (events that an earlier crash left to be repeated are not this stop's)
	// and what a Hold in a fan-out gives again can show after a stop as well
	if clean && exp > 0 && w.crash.host+w.crash.src+w.crash.stop+sum(w.sinkCrash)+sum(w.holdDup)+sum(w.unk) == 0 {
		mBug("graceful", "after a completed drain %d events would be repeated", exp)
	}
	if clean {
		w.crash.cleanStop++
	} else {
		w.crash.stop++
	}
	w.tearDown()
}

func sum(a []int) (n int) {
	for _, x := range a {
		n += x
	}
	return n
}

func (w *world) faultChoices(add func(int, func())) {
	if w.faults > 0 && w.host != nil && w.p(0.15) {
		hit := func(f func()) func() { return func() { w.faults--; f() } }
		add(1, hit(w.killHost))
		if w.src != nil && !w.host.settling {
			add(1, hit(w.killSource))
		}
		if !w.stopping && !w.host.stopping {
			add(2, hit(func() { w.tr("STOP"); w.stopping = true; w.host.OnStop(); w.flush() }))
		}
		for i := range w.snk {
			if w.snk[i] != nil {
				add(1, hit(func() { w.killSink(i) }))
			}
			add(1, hit(func() { w.down[i] = true; w.tr("broker %d down", i) }))
		}
	}
	if w.host != nil && w.host.stopping {
		if w.p(0.1) {
			add(1, func() { w.tr("stop timed out"); w.killHost() })
		}
	}
	for i := range w.down {
		if w.down[i] && w.p(0.3) {
			add(1, func() { w.down[i] = false; w.tr("broker %d up", i) })
		}
	}
}

// mend ends all faults; what is refused for ever is mended (except the poison).
func (w *world) mend(poisonToo bool) {
	for k, rf := range w.refusals {
		ev := w.byID(k[1]).ev
		if rf.left < 0 && (poisonToo || !w.isPoison(ev.Key)) {
			rf.left = 0
		}
	}
	bad := false
	for _, r := range w.rows {
		if r.ev.Bad {
			r.ev.Bad, bad = false, true
		}
	}
	for i := range w.down {
		w.down[i] = false
	}
	w.tr("---- all faults end")
	if w.host != nil && (w.host.stopping || bad && w.set.Positions) {
		w.killHost() // the configuration is mended: a restart
	}
}

func (w *world) tick(timerShare float64) bool {
	w.steps++
	cs, ts := w.choices()
	if len(ts) > 0 && (len(cs) == 0 || w.p(timerShare)) {
		cs = ts
	}
	if len(cs) == 0 {
		return false
	}
	total := 0
	for _, c := range cs {
		total += c.weight
	}
	n := w.rng.IntN(total)
	for _, c := range cs {
		if n -= c.weight; n < 0 {
			c.do()
			break
		}
	}
	w.bounds()
	return true
}

func (w *world) bounds() {
	if w.host == nil {
		return
	}
	for i, s := range w.host.Ledger.sinks {
		w.st.maxLanes = max(w.st.maxLanes, len(s.lanes))
		if len(s.lanes) > 2*w.set.Window+w.set.MaxHeld {
			mBug("memory", "%d lanes at sink %d", len(s.lanes), i)
		}
		if p := w.snk[i]; p != nil && len(p.failed) > 2*w.set.Window+w.set.MaxHeld {
			mBug("memory", "sink %d remembers %d failed keys", i, len(p.failed))
		}
	}
	w.st.maxHeld = max(w.st.maxHeld, len(w.host.held))
}

func (w *world) isPoison(key string) bool {
	return w.poison != "" && (key == w.poison || w.two && key == "b" || w.all && key != "")
}

// unsettled counts what has still to happen, leaving out one key.
func (w *world) unsettled(but string) (n int) {
	for _, r := range w.rows {
		if r.noise || but != "" && w.isPoison(r.ev.Key) {
			continue
		}
		for i := range w.snk {
			if w.wants(i, r.ev.ID) && w.accepted[i][r.ev.ID] == 0 && !w.discarded[i][r.ev.ID] {
				n++
			}
		}
	}
	return n
}

func (w *world) finish() (err error) {
	defer func() {
		if r := recover(); r != nil {
			v, ok := r.(violation)
			if !ok {
				panic(r)
			}
			err = v
		}
	}()
	for w.steps < 3000 && (w.nextID < w.events || w.p(0.99) || w.faults > 0) {
		if !w.tick(0.15) {
			break
		}
	}
	w.phase2 = true
	w.mend(false)
	if w.poison != "" {
		for lim := w.steps + 20000; w.unsettled(w.poison) > 0 && w.steps < lim; {
			w.tick(0.08)
			if w.set.Positions && w.steps > lim-17000 {
				break
			}
		}
		if n := w.unsettled(w.poison); n > 0 && !w.set.Positions {
			mBug("I11", "%d events of other keys wait behind key %q", n, w.poison)
		}
		if w.set.Positions {
			w.oneWindowOn()
		}
		w.mend(true)
	}
	for lim := w.steps + 40000; w.tick(0.15); {
		if w.steps > lim {
			mBug("liveness", "no end: %d unsettled, held %v", w.unsettled(""), w.host.held)
		}
	}
	if n := w.unsettled(""); n > 0 {
		mBug("lost or stuck", "%d never settled; host has %d entries, held %v", n, w.host.events, w.host.held)
	}
	for _, r := range w.rows {
		if !w.set.Positions && !r.deleted {
			mBug("stuck", "row %d settled, but never deleted", r.ev.ID)
		}
	}
	if w.set.Positions && w.confirmed != len(w.rows) {
		mBug("stuck", "log confirmed to %d of %d", w.confirmed, len(w.rows))
	}
	return w.duplicates()
}

// oneWindowOn: a log behind a poison event has gone no further than a window.
func (w *world) oneWindowOn() {
	first, seen := -1, 0
	for _, r := range w.rows {
		if r.noise {
			continue
		}
		if r.ev.Key == w.poison && first < 0 && w.accepted[0][r.ev.ID] == 0 && !w.discarded[0][r.ev.ID] && w.wants(0, r.ev.ID) {
			first = r.ev.ID
		}
		if first > 0 {
			if seen++; seen > w.set.Window && w.accepted[0][r.ev.ID] > 0 {
				mBug("I11", "log: %d accepted, %d is poison, window %d", r.ev.ID, first, w.set.Window)
			}
		}
	}
}

func (w *world) duplicates() error {
	for i := range w.snk {
		n := 0
		for _, k := range w.accepted[i] {
			n += k - 1
		}
		bound := w.set.Window*(w.crash.host+w.crash.src+w.crash.stop+w.sinkCrash[i]) + w.unk[i] + w.holdDup[i]
		if w.is("bound-without-hold") {
			bound -= w.holdDup[i]
		}
		if n > bound {
			return violation{"duplicates", fmt.Sprintf("sink %d: %d, bound %d (crashes %+v sink %v unknown %d hold %d)", i, n, bound, w.crash, w.sinkCrash, w.unk[i], w.holdDup[i])}
		}
	}
	return nil
}
