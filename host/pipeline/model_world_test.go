package pipeline

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

type violation struct{ inv, text string }

func (v violation) Error() string { return v.inv + ": " + v.text }

// row of the outbox table, or record of the log.
type row struct {
	ev        mEvent
	committed bool
	deleted   bool
	noise     bool // log only: a record that is no event (mProgress)
	pos       int  // log: its position, 1…
}

// refusal of one event by one sink's broker.
type refusal struct {
	left  int // -1: until mended
	class mClass
}

// offer is what a sink has given to its broker and has no answer to.
type offer struct {
	sink  int
	ev    mEvent
	num   int
	group int // ordered: accepted as a prefix within a group and lane
	owner *sinkProc
}

type sinkProc struct {
	i       int
	ordered bool
	next    int
	have    []offer
	failed  map[string]bool
	group   int
	groups  map[string]int // lanes that have a newer one, after an unknown outcome
	ended   map[int]bool
}

type sourceProc struct {
	next    int
	out     map[int]int // row → number: read, and neither deleted nor returned
	acked   map[int]bool
	held    map[string]bool
	dead    map[int]bool // numbers that have ended
	readPos int          // log
	through int          // log
	confirm int          // log: position to confirm
	stop    bool
}

type schedule struct {
	seed     uint64
	set      mSettings
	keys     int
	events   int
	bad      bool
	refuse   float64 // chance per event and sink
	forever  float64 // of these, for ever
	faults   int     // crashes and the like
	unknown  bool    // accepted, but the sink says Failure
	poison   string  // this key's first event is refused for ever by sink 0, never mended
	front    int     // rows of the poison key contiguous in front
	mutation string
	trace    bool
	noHold   bool
	two      bool // a second poison key "b", in turn with the first
	all      bool // every key is poison; events without a key must go on
}

type world struct {
	schedule
	rng    *rand.Rand
	rows   []*row
	nextID int
	// durable
	durPos    int
	durDisc   map[[2]int]bool
	confirmed int // log: what the upstream has forgotten
	// processes
	host   *mHost
	src    *sourceProc
	snk    []*sinkProc
	down   []bool
	offers []offer
	group  int
	// channels
	fromSrc, toSrc   []any
	fromSink, toSink [][]any
	effects          []any // asked of the state database
	sinkOpenDue      []bool
	srcOpen          *mOpenSource // asked for, not yet done
	stopping         bool
	phase2           bool
	refusals         map[[2]int]*refusal
	// truth
	accepted  []map[int]int // per sink: event → times
	discarded []map[int]bool
	perKey    map[string][]int // commit order
	steps     int
	log       []string
	crash     struct{ host, src, stop, cleanStop int }
	sinkCrash []int
	unk       []int
	holdDup   []int
	maxExp    int
	life      []map[int]bool // accepted in this life of host and source, and not given back
	st        struct{ maxLanes, maxHeld, holds, distance int }
}

func newWorld(c schedule) *world {
	n := len(c.set.Sinks)
	w := &world{schedule: c, rng: rand.New(rand.NewPCG(c.seed, 7)), durDisc: map[[2]int]bool{}, refusals: map[[2]int]*refusal{}, perKey: map[string][]int{}}
	w.snk, w.down, w.sinkOpenDue = make([]*sinkProc, n), make([]bool, n), make([]bool, n)
	w.fromSink, w.toSink = make([][]any, n), make([][]any, n)
	w.sinkCrash, w.unk, w.holdDup = make([]int, n), make([]int, n), make([]int, n)
	for range n {
		w.accepted = append(w.accepted, map[int]int{})
		w.discarded = append(w.discarded, map[int]bool{})
		w.life = append(w.life, map[int]bool{})
	}
	for i := range c.front {
		if c.two && i%2 == 1 {
			w.insert("b")
		} else if c.all {
			w.insert(string(rune('a' + i%c.keys)))
		} else {
			w.insert(c.poison)
		}
	}
	return w
}

func (w *world) is(m string) bool { return w.mutation == m }
func (w *world) p(f float64) bool { return w.rng.Float64() < f }
func (w *world) tr(f string, a ...any) {
	if w.trace {
		w.log = append(w.log, fmt.Sprintf("%4d %s", w.steps, fmt.Sprintf(f, a...)))
	}
}

// ---- the service

func (w *world) insert(key string) {
	w.nextID++
	ev := mEvent{ID: w.nextID, Key: key}
	if w.bad && w.p(0.04) {
		ev.Bad = true
	}
	r := &row{ev: ev, pos: len(w.rows) + 1, committed: true}
	w.rows = append(w.rows, r)
	w.perKey[ev.Lane()] = append(w.perKey[ev.Lane()], ev.ID)
	for i := range w.set.Sinks {
		if w.p(w.refuse) {
			rf := &refusal{left: 1 + w.rng.IntN(3), class: mClass(w.rng.IntN(3))}
			if w.p(w.forever) {
				rf.left = -1
			}
			w.refusals[[2]int{i, ev.ID}] = rf
		}
	}
	if w.isPoison(key) && len(w.perKey[key]) == 1 {
		w.refusals[[2]int{0, ev.ID}] = &refusal{left: -1, class: mClass(w.rng.IntN(2))}
	}
	w.tr("insert %d key=%q bad=%v", ev.ID, key, ev.Bad)
}

// begin inserts rows whose transaction commits later: of a key that nobody else writes meanwhile.
func (w *world) service() {
	key := ""
	if k := w.rng.IntN(w.keys + 1); k > 0 {
		key = string(rune('a' + k - 1))
	}
	late := !w.set.Positions && w.p(0.25)
	for _, r := range w.rows { // the key's lock is held by an open transaction
		if !r.committed && r.ev.Key == key && key != "" {
			return
		}
	}
	w.insert(key)
	if late {
		w.rows[len(w.rows)-1].committed = false
		w.tr("  (open)")
	} else if w.set.Positions && w.p(0.2) {
		w.rows = append(w.rows, &row{noise: true, pos: len(w.rows) + 1, committed: true})
	}
}

// ---- the source

func (w *world) openSource(o mOpenSource) {
	w.src = &sourceProc{next: 1, out: map[int]int{}, acked: map[int]bool{}, held: map[string]bool{}, dead: map[int]bool{}, readPos: o.Pos, confirm: o.Pos}
	for _, l := range o.Held {
		w.src.held[l] = true
	}
	// The position in Open is durable: it counts as acked. Else an idle log would keep what lies before it.
	if w.is("open-position-not-acked") {
		w.src.confirm = w.confirmed
	}
	w.tr("source opened at %d held %v", o.Pos, o.Held)
	if w.set.Positions && o.Pos < w.confirmed {
		mBug("I2", "opened at %d, upstream has forgotten up to %d", o.Pos, w.confirmed)
	}
}

func (w *world) readable() (rs []*row) {
	s := w.src
	if s.stop {
		return nil
	}
	if w.set.Positions {
		return w.rows[min(s.readPos, len(w.rows)):]
	}
	if len(s.out) >= w.set.Window {
		return nil
	}
	for _, r := range w.rows {
		if _, out := s.out[r.ev.ID]; r.committed && !r.deleted && !out && !s.held[r.ev.Lane()] {
			rs = append(rs, r)
		}
	}
	return rs
}

func (w *world) sourceRead(rs []*row) {
	s := w.src
	room := w.set.Window - len(s.out)
	if w.set.Positions {
		room = w.set.Window - (s.next - 1 - s.through)
	}
	if w.is("source-ignores-window") {
		room = w.set.Window + 2
	}
	max := 1 + w.rng.IntN(4)
	b := mBatch{First: s.next}
	for _, r := range rs {
		if r.noise {
			if len(b.Events) == 0 {
				s.readPos = r.pos
				w.fromSrc = append(w.fromSrc, mProgress{r.pos})
				w.tr("source progress %d", r.pos)
				return
			}
			break
		}
		if len(b.Events) >= max || len(b.Events) >= room {
			break
		}
		s.out[r.ev.ID] = s.next
		s.next++
		b.Events = append(b.Events, r.ev)
		if w.set.Positions {
			s.readPos, b.Pos = r.pos, r.pos
			delete(s.out, r.ev.ID)
		}
	}
	if len(b.Events) > 0 {
		w.fromSrc = append(w.fromSrc, b)
		w.tr("source batch %d: %v", b.First, ids(b.Events))
	}
}

func (w *world) sourceGets(m any) {
	s := w.src
	end := func(n int) {
		if n >= s.next || s.dead[n] {
			mBug("I6", "source number %d ended again, or never sent", n)
		}
		s.dead[n] = true
	}
	find := func(n int) int {
		for id, k := range s.out {
			if k == n {
				return id
			}
		}
		mBug("I6", "source has no number %d", n)
		return 0
	}
	switch m := m.(type) {
	case mSourceAck:
		w.tr("source gets ack through=%d %v pos=%d", m.Through, m.Seqs, m.Pos)
		if w.set.Positions {
			s.through = max(s.through, m.Through)
			s.confirm = max(s.confirm, m.Pos)
			return
		}
		for _, n := range m.Seqs {
			end(n)
			id := find(n)
			w.mustBeSettled("I1", id)
			s.acked[id] = true
			if w.is("window-freed-before-delete") {
				delete(s.out, id)
				w.rows[id-1].deleted = true // not read again; the delete itself comes later
			}
		}
	case mHold:
		w.tr("source gets hold %v returned %v", m.Lanes, m.Returned)
		w.st.holds += len(m.Lanes)
		for _, l := range m.Lanes {
			s.held[l] = true
		}
		for _, n := range m.Returned {
			end(n)
			id := find(n)
			for i := range w.snk {
				if w.accepted[i][id] > 0 {
					w.holdDup[i]++
				}
				delete(w.life[i], id)
			}
			delete(s.out, id)
		}
		if len(m.Lanes) > 0 {
			w.fromSrc = append(w.fromSrc, mHeld{m.Lanes})
		}
	case mRelease:
		w.tr("source gets release %v", m.Lanes)
		for _, l := range m.Lanes {
			delete(s.held, l)
		}
	case mStop:
		s.stop = true
		w.tr("source gets stop")
	}
}

// mustBeSettled: the checker's own truth, not the host's.
func (w *world) mustBeSettled(inv string, id int) {
	for i := range w.snk {
		if w.wants(i, id) && w.accepted[i][id] == 0 && !w.discarded[i][id] {
			mBug(inv, "event %d acked to the source, but not settled at sink %d", id, i)
		}
	}
}

func (w *world) wants(i, id int) bool {
	ev := w.byID(id).ev
	return ev.Bad || w.set.Sinks[i].Wants(ev)
}

func (w *world) byID(id int) *row {
	if !w.set.Positions {
		return w.rows[id-1]
	}
	for _, r := range w.rows {
		if !r.noise && r.ev.ID == id {
			return r
		}
	}
	return nil
}

// upstream takes effect: rows deleted, log confirmed.
func (w *world) effectUpstream() {
	s := w.src
	if w.set.Positions {
		if s.confirm > w.durPos {
			mBug("I2", "confirms %d, durable is %d", s.confirm, w.durPos)
		}
		for _, r := range w.rows[w.confirmed:s.confirm] {
			if !r.noise {
				w.mustBeSettled("I2", r.ev.ID)
			}
		}
		w.confirmed = s.confirm
		w.tr("log confirmed to %d", w.confirmed)
		return
	}
	for id := range s.acked {
		w.rows[id-1].deleted = true
		delete(s.out, id)
	}
	w.tr("deleted %v", sortedInts(s.acked))
	s.acked = map[int]bool{}
}

func (w *world) pendingUpstream() bool {
	return len(w.src.acked) > 0 || w.set.Positions && w.src.confirm > w.confirmed
}

// ---- sinks and brokers

func (w *world) openSink(i int) {
	w.group++
	w.snk[i] = &sinkProc{i: i, ordered: w.set.Sinks[i].KeepsOrder, next: 1, failed: map[string]bool{}, group: w.group, groups: map[string]int{}, ended: map[int]bool{}}
	w.tr("sink %d opened", i)
}

func (w *world) sinkSays(p *sinkProc, m any) { w.fromSink[p.i] = append(w.fromSink[p.i], m) }

func (w *world) sinkGets(i int, m any) {
	p := w.snk[i]
	switch m := m.(type) {
	case mBatch:
		w.tr("sink %d gets %d: %v", i, m.First, ids(m.Events))
		if m.First != p.next {
			mBug("I6", "sink %d gets number %d, wants %d", i, m.First, p.next)
		}
		for _, ev := range m.Events {
			o := offer{sink: i, ev: ev, num: p.next, owner: p}
			p.next++
			if p.ordered && p.failed[ev.Lane()] && ev.Key != "" && !w.is("sink-forgets-failed-keys") {
				w.sinkSays(p, mReturned{[]int{o.num}})
				continue
			}
			p.have = append(p.have, o)
		}
	case mRelease:
		w.tr("sink %d gets release %v", i, m.Lanes)
		for _, l := range m.Lanes {
			delete(p.failed, l)
		}
	}
}

// offerable: a simple sink anything, an ordered one the first of a lane.
func (w *world) offerable(p *sinkProc) (js []int) {
	seen := map[string]bool{}
	for j, o := range p.have {
		if !p.ordered || !seen[o.ev.Lane()] {
			js = append(js, j)
		}
		seen[o.ev.Lane()] = true
	}
	return js
}

func (w *world) offer(p *sinkProc, j int) {
	o := p.have[j]
	p.have = slices.Delete(p.have, j, j+1)
	o.group = p.group
	if g := p.groups[o.ev.Lane()]; g != 0 {
		o.group = g
	}
	w.checkOffer(o)
	w.offers = append(w.offers, o)
	w.tr("sink %d offers %d", p.i, o.ev.ID)
}

// checkOffer: I4. Earlier ones of the key must be in, or given up by policy, or (ordered) be
// ahead on the same all-or-stop transport.
func (w *world) checkOffer(o offer) {
	for _, id := range w.perKey[o.ev.Lane()] {
		if id == o.ev.ID {
			return
		}
		if !w.wants(o.sink, id) || w.accepted[o.sink][id] > 0 || w.discarded[o.sink][id] {
			continue
		}
		ahead := slices.ContainsFunc(w.offers, func(x offer) bool {
			return o.owner.ordered && x.ev.ID == id && x.sink == o.sink && x.group == o.group && x.owner == o.owner
		})
		if !ahead {
			mBug("I4", "sink %d offers %d while %d of its key can still be refused", o.sink, o.ev.ID, id)
		}
	}
}

// answerable: the offers that the broker may take up next.
func (w *world) answerable() (js []int) {
	seen := map[string]bool{}
	for j, o := range w.offers {
		k := fmt.Sprint(o.sink, o.group, o.ev.Lane())
		ordered := w.set.Sinks[o.sink].KeepsOrder
		if !w.down[o.sink] && (!ordered || !seen[k]) {
			js = append(js, j)
		}
		seen[k] = true
	}
	return js
}

func (w *world) answer(j int) {
	o := w.offers[j]
	w.offers = slices.Delete(w.offers, j, j+1)
	p := o.owner
	alive := p != nil && w.snk[o.sink] == p
	if rf := w.refusals[[2]int{o.sink, o.ev.ID}]; rf != nil && rf.left != 0 {
		rf.left--
		if rf.left < 0 {
			rf.left = -1
		}
		w.tr("broker %d refuses %d class=%d alive=%v", o.sink, o.ev.ID, rf.class, alive)
		rest := w.takeRest(o)
		if alive {
			w.failAt(p, o, rf.class, rest)
		}
		return
	}
	if alive && w.unknown && !w.phase2 && w.p(0.05) { // outcome unknown: what is on the way may land later
		w.unk[o.sink]++
		rest := w.takeRest(o)
		w.unk[o.sink] += len(rest)
		w.group++
		p.groups[o.ev.Lane()] = w.group
		for _, x := range append([]offer{o}, rest...) {
			x.owner = nil
			w.offers = append(w.offers, x)
		}
		w.tr("sink %d: outcome of %d unknown", o.sink, o.ev.ID)
		w.failAt(p, o, mTransient, rest)
		return
	}
	if !alive && !w.phase2 && w.p(0.3) { // lost with the connection, and all behind it
		w.takeRest(o)
		return
	}
	w.accept(o)
	if alive {
		if !w.host.settling {
			w.life[o.sink][o.ev.ID] = true
		}
		w.endAt(p, o.num)
		if w.is("sink-acks-late-first") && len(p.have) > 0 {
			return
		}
		w.sinkSays(p, mAck{[]int{o.num}})
	}
}

// takeRest removes what stands behind o on the same transport and lane.
func (w *world) takeRest(o offer) (rest []offer) {
	if !w.set.Sinks[o.sink].KeepsOrder || w.is("transport-selective") {
		return nil
	}
	w.offers = slices.DeleteFunc(w.offers, func(x offer) bool {
		if x.sink == o.sink && x.group == o.group && x.ev.Lane() == o.ev.Lane() {
			rest = append(rest, x)
			return true
		}
		return false
	})
	return rest
}

func (w *world) endAt(p *sinkProc, n int) { p.ended[n] = true }

func (w *world) failAt(p *sinkProc, o offer, c mClass, rest []offer) {
	w.sinkSays(p, mFailure{o.num, c})
	l := o.ev.Lane()
	if !p.ordered {
		return
	}
	if o.ev.Key != "" {
		p.failed[l] = true
	}
	if w.is("sink-keeps-publishing") {
		p.have = append(rest, p.have...)
		return
	}
	p.have = slices.DeleteFunc(p.have, func(x offer) bool {
		if x.ev.Lane() == l {
			rest = append(rest, x)
			return true
		}
		return false
	})
	var r mReturned
	for _, x := range rest {
		r.Seqs = append(r.Seqs, x.num)
	}
	if w.is("sink-loses-returned") {
		return
	}
	if len(r.Seqs) > 0 {
		w.sinkSays(p, r)
		if w.is("sink-returns-twice") {
			w.sinkSays(p, r)
		}
	}
}

func (w *world) accept(o offer) {
	i, id := o.sink, o.ev.ID
	w.tr("broker %d accepts %d", i, id)
	if !w.byID(id).committed || o.ev.Bad || !w.wants(i, id) {
		mBug("invented", "event %d at sink %d", id, i)
	}
	if w.accepted[i][id] == 0 {
		past := false
		for _, k := range w.perKey[o.ev.Lane()] {
			switch {
			case k == id:
				past = true
			case !past && w.wants(i, k) && w.accepted[i][k] == 0 && !w.discarded[i][k]:
				mBug("order", "sink %d: %d accepted before %d", i, id, k)
			case past && w.accepted[i][k] > 0:
				mBug("order-after-discard", "sink %d: %d (once discarded: %v) accepted after %d", i, id, w.discarded[i][id], k)
			}
		}
	}
	w.accepted[i][id]++
}

// ---- crashes

func (w *world) orphan(i int) { // what a dead sink had offered may still land
	w.snk[i] = nil
	w.fromSink[i], w.toSink[i] = nil, nil
}

func (w *world) killSink(i int) {
	w.tr("CRASH sink %d", i)
	w.sinkCrash[i]++
	w.orphan(i)
	w.host.OnSinkEnded(i, true)
	w.flush()
}

func (w *world) killSource() {
	w.tr("CRASH source")
	w.crash.src++
	w.exposure()
	w.dropSource()
	w.host.OnSourceEnded()
	w.flush()
}

func (w *world) dropSource() {
	if w.src != nil && !w.set.Positions { // what may be repeated: read, and not yet gone upstream
		n := len(w.src.out)
		for id := range w.src.acked {
			if _, ok := w.src.out[id]; !ok {
				n++
			}
		}
		if n > w.set.Window {
			mBug("duplicates", "a crash here repeats %d, window %d", n, w.set.Window)
		}
	}
	for i := range w.life {
		clear(w.life[i])
	}
	if w.src != nil && !w.set.Positions && w.p(0.5) { // its last delete may have reached the database
		w.effectUpstream()
	}
	if w.is("window-freed-before-delete") && w.src != nil && !w.set.Positions {
		for id := range w.src.acked {
			w.rows[id-1].deleted = false
		}
	}
	w.src, w.fromSrc, w.toSrc = nil, nil, nil
}

func (w *world) killHost() {
	w.tr("CRASH host")
	w.crash.host++
	w.exposure()
	w.tearDown()
}

func (w *world) tearDown() {
	w.dropSource()
	for i := range w.snk {
		w.orphan(i)
		w.sinkOpenDue[i] = false
	}
	w.host, w.effects, w.srcOpen, w.stopping = nil, nil, nil, false
}

// exposure: what a crash now would repeat, at the worst sink.
func (w *world) exposure() int {
	worst := 0
	for i := range w.snk {
		n := 0
		for _, r := range w.rows {
			if r.noise || r.deleted || w.set.Positions && r.pos <= w.durPos {
				continue
			}
			if w.accepted[i][r.ev.ID] > 0 {
				n++
			}
		}
		worst = max(worst, n)
	}
	w.maxExp = max(w.maxExp, worst)
	if w.set.Positions && worst > w.set.Window {
		mBug("duplicates", "a crash here repeats %d, window %d", worst, w.set.Window)
	}
	return worst
}

func ids(evs []mEvent) string {
	var b strings.Builder
	for _, e := range evs {
		fmt.Fprintf(&b, "%d%s ", e.ID, e.Key)
	}
	return b.String()
}

func sortedInts(m map[int]bool) (k []int) {
	for i := range m {
		k = append(k, i)
	}
	slices.Sort(k)
	return k
}
