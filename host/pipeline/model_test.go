package pipeline

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/relevo-io/relevo/internal/wire"
	pluginv1 "github.com/relevo-io/relevo/proto/relevo/plugin/v1"
)

// The protocol as a model: a service, a source, sinks, brokers, crashes and delays around the real Ledger, with every
// promise of docs/guarantees.md checked at each step. One seed is one schedule.

// mEvent is one row of the outbox. Bad rows cannot be made into an event: they travel as Rejected.
type mEvent struct {
	ID  int
	Key string // "" asks for no order
	Bad bool
}

// Lane is what order, holding and failing go by.
func (e mEvent) Lane() string {
	if e.Key == "" {
		return "#" + strconv.Itoa(e.ID)
	}
	return e.Key
}

type mClass int

const (
	mTransient mClass = iota
	mPermanent
	mConfig
)

type (
	mBatch struct {
		First  int
		Events []mEvent
		Pos    int
	}
	mProgress  struct{ Pos int }
	mHeld      struct{ Lanes []string }
	mStopped   struct{}
	mSourceAck struct {
		Through int
		Seqs    []int
		Pos     int
	}
	mHold struct {
		Lanes    []string
		Returned []int
	}
	mRelease struct{ Lanes []string }
	mStop    struct{}
	mAck     struct{ Seqs []int }
	mFailure struct {
		Seq   int
		Class mClass
	}
	mReturned   struct{ Seqs []int }
	mOpenSource struct {
		Pos  int
		Held []string
	}
	mStorePos     struct{ Pos, Through int }
	mStoreDiscard struct{ Sink, ID int }
)

type mSinkSettings struct {
	KeepsOrder       bool
	DiscardPermanent bool
	Wants            func(mEvent) bool
}

type mSettings struct {
	Window, MaxHeld      int
	HoldsKeys, Positions bool
	Sinks                []mSinkSettings
	DownAfter            int
}

// mHost drives a Ledger with the model's messages.
type mHost struct {
	*Ledger
	w *world
}

func newMHost(w *world) *mHost {
	r := Rules{WindowEvents: w.set.Window, WindowBytes: 1 << 20, MaxHeld: w.set.MaxHeld, DownAfter: w.set.DownAfter}
	for _, s := range w.set.Sinks {
		r.Sinks = append(r.Sinks, SinkRules{DiscardPermanent: s.DiscardPermanent, Constant: "d", Wants: func(raw []byte) bool {
			var e wire.Event
			if err := e.Parse(raw); err != nil {
				panic(err)
			}
			id, _ := strconv.Atoi(e.ID)
			return s.Wants(mEvent{ID: id, Key: string(e.Key)})
		}})
	}
	var pos []byte
	if w.durPos > 0 {
		pos = []byte(strconv.Itoa(w.durPos))
	}
	var discarded []Discard
	for d := range w.durDisc {
		discarded = append(discarded, Discard{d[0], strconv.Itoa(d[1])})
	}
	h := &mHost{NewLedger(r, pos, discarded), w}
	h.Clock(time.Unix(0, 0))
	return h
}

func must(err error) {
	if err != nil {
		mBug("protocol", "%v", err)
	}
}

// parse makes the batch that the host would have received.
func parse(f *wire.Frame) *wire.Batch {
	body, ok := wire.BatchOf(bytes.Join(f.Segments, nil))
	if !ok {
		panic("no batch")
	}
	b, err := wire.ParseBatch(body)
	if err != nil {
		panic(err)
	}
	return b
}

func (h *mHost) OnBatch(m mBatch) {
	var b wire.Builder
	for _, e := range m.Events {
		if e.Bad {
			b.Reject(&pluginv1.Rejected{Id: strconv.Itoa(e.ID), Key: []byte(e.Key), Code: "bad"})
			continue
		}
		b.Add(&wire.Event{ID: strconv.Itoa(e.ID), Key: []byte(e.Key), Payload: []byte("payload")})
	}
	var pos []byte
	if m.Pos != 0 {
		pos = []byte(strconv.Itoa(m.Pos))
	}
	must(h.Ledger.OnBatch(parse(b.Response(uint64(m.First), pos))))
}

func (h *mHost) OnProgress(m mProgress) { must(h.Ledger.OnProgress([]byte(strconv.Itoa(m.Pos)))) }

func (h *mHost) OnHeld(m mHeld) {
	var keys [][]byte
	var ids []string
	for _, l := range m.Lanes {
		if id, ok := strings.CutPrefix(l, "#"); ok {
			ids = append(ids, id)
		} else {
			keys = append(keys, []byte(l))
		}
	}
	h.Ledger.OnHeld(keys, ids)
}

func toRanges(ns []int) seqRanges {
	var r seqRanges
	for _, n := range slices.Sorted(slices.Values(ns)) {
		r.add(uint64(n))
	}
	return r
}

func fromRanges(r seqRanges) (ns []int) {
	for _, x := range r {
		for n := x.First; n <= x.Last; n++ {
			ns = append(ns, int(n))
		}
	}
	return ns
}

func (h *mHost) OnAck(i int, m mAck)           { must(h.Ledger.OnAck(i, 0, toRanges(m.Seqs))) }
func (h *mHost) OnReturned(i int, m mReturned) { must(h.Ledger.OnReturned(i, toRanges(m.Seqs))) }

func (h *mHost) OnFailure(i int, m mFailure) {
	class := map[mClass]pluginv1.ErrorClass{
		mTransient: pluginv1.ErrorClass_ERROR_CLASS_TRANSIENT,
		mPermanent: pluginv1.ErrorClass_ERROR_CLASS_PERMANENT,
		mConfig:    pluginv1.ErrorClass_ERROR_CLASS_CONFIG,
	}[m.Class]
	must(h.Ledger.OnFailure(i, &pluginv1.Failure{Seq: uint64(m.Seq), Class: class}))
}

func (h *mHost) OnStored(m mStorePos) {
	h.Ledger.OnStored(StorePosition{[]byte(strconv.Itoa(m.Pos)), uint64(m.Through)})
}

func (h *mHost) OnDiscardStored(m mStoreDiscard) {
	h.Ledger.OnDiscardStored(Discard{m.Sink, strconv.Itoa(m.ID)})
}

// hash of a lane by the model's name for it.
func (h *mHost) hash(lane string) Lane {
	if id, ok := strings.CutPrefix(lane, "#"); ok {
		return h.LaneOf(nil, id)
	}
	return h.LaneOf([]byte(lane), "")
}

// lanes names every lane there is.
func (h *mHost) lanes() []string { return sortedKeys(h.w.perKey) }

func sortedKeys[V any](m map[string]V) []string {
	k := make([]string, 0, len(m))
	for s := range m {
		k = append(k, s)
	}
	slices.Sort(k)
	return k
}

func laneNames(keys [][]byte, ids []string) (ls []string) {
	for _, k := range keys {
		ls = append(ls, string(k))
	}
	for _, id := range ids {
		ls = append(ls, "#"+id)
	}
	slices.Sort(ls) // the ledger ranges over maps; a seed must mean one schedule
	return ls
}

func toPos(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	n, err := strconv.Atoi(string(b))
	if err != nil {
		panic(err)
	}
	return n
}

// flush carries out what the ledger asked for.
func (w *world) flush() {
	for w.host != nil {
		outs := w.host.Take()
		if len(outs) == 0 {
			return
		}
		for _, o := range outs {
			w.carryOut(o)
		}
	}
}

func (w *world) carryOut(o Out) {
	toSource := func(m any) {
		if w.src != nil {
			w.toSrc = append(w.toSrc, m)
		}
	}
	switch m := o.Msg.(type) {
	case OpenSource:
		w.fromSrc, w.toSrc, w.src = nil, nil, nil
		w.srcOpen = &mOpenSource{toPos(m.Position), laneNames(m.HeldKeys, m.HeldIDs)}
	case OpenSink:
		w.orphan(o.To)
		w.sinkOpenDue[o.To] = true
	case StorePosition:
		w.effects = append(w.effects, &effect{msg: mStorePos{toPos(m.Position), int(m.Through)}})
	case StoreDiscard:
		w.effects = append(w.effects, &effect{msg: mStoreDiscard{m.Sink, toPos([]byte(m.EventID))}})
	case SourceAck:
		toSource(mSourceAck{int(m.ThroughSeq), fromRanges(m.Ranges), toPos(m.Position)})
	case Hold:
		toSource(mHold{laneNames(m.Keys, m.IDs), fromRanges(m.Returned)})
	case Release:
		if o.To == Source {
			toSource(mRelease{laneNames(m.Keys, m.IDs)})
		} else if w.snk[o.To] != nil {
			w.toSink[o.To] = append(w.toSink[o.To], mRelease{laneNames(m.Keys, m.IDs)})
		}
	case Stop:
		toSource(mStop{})
	case Drained:
		w.tr("drained without a source")
		w.stopping = false
		w.crash.stop++
		w.tearDown()
	case Deliver:
		if w.snk[o.To] == nil {
			mBug("I6", "a batch for sink %d, which is not open", o.To)
		}
		b := parse(m.Batch.Request())
		x := mBatch{First: int(b.FirstSeq)}
		for k := range b.Len() {
			var e wire.Event
			if err := e.Parse(b.Raw(k)); err != nil {
				panic(err)
			}
			if d, ok := b.Destination(k); !ok || d != "d" {
				mBug("destination", "%q", d)
			}
			x.Events = append(x.Events, mEvent{ID: toPos([]byte(e.ID)), Key: string(e.Key)})
		}
		w.toSink[o.To] = append(w.toSink[o.To], x)
	case RetryLater, HeldBack, ProbeLater, SeenDiscards:
	case ForgetDiscards:
		for _, d := range m.Discards {
			delete(w.durDisc, [2]int{d.Sink, toPos([]byte(d.EventID))})
		}
	default:
		panic(fmt.Sprintf("%T", m))
	}
}

var profiles = []string{"poll1", "poll-fan", "log1", "log-fan", "poison", "poison-fan", "poison-log"}

// configure makes a run from its profile and seed.
func configure(profile string, seed uint64, filter string) schedule {
	r := rand.New(rand.NewPCG(seed, 1))
	c := schedule{
		seed: seed, keys: 2 + r.IntN(3), events: 20 + r.IntN(41), refuse: []float64{0, 0.1, 0.3}[r.IntN(3)], forever: 0.2,
		faults: r.IntN(6), unknown: r.IntN(2) == 0, bad: r.IntN(3) == 0,
	}
	c.set = mSettings{Window: 3 + r.IntN(6), MaxHeld: 2 + r.IntN(4), HoldsKeys: true}
	n := 1
	if strings.HasSuffix(profile, "fan") || strings.HasPrefix(profile, "log-") {
		n = 2 + r.IntN(2)
	}
	for i := range n {
		k := mSinkSettings{KeepsOrder: r.IntN(2) == 0, DiscardPermanent: r.IntN(2) == 0, Wants: func(mEvent) bool { return true }}
		if r.IntN(3) == 0 {
			m := 2 + r.IntN(3)
			k.Wants = func(e mEvent) bool { return (e.ID+i)%m != 0 }
		}
		c.set.Sinks = append(c.set.Sinks, k)
	}
	if strings.Contains(profile, "log") {
		c.set.HoldsKeys, c.set.Positions = false, true
	}
	if strings.HasPrefix(profile, "poison") {
		c.poison, c.front = "a", 3+r.IntN(20)
		c.bad, c.set.Sinks[0].DiscardPermanent = false, false
		c.set.Sinks[0].Wants = func(mEvent) bool { return true }
		c.refuse /= 3
		c.forever = 0
	}
	for _, f := range strings.Split(filter, ",") {
		switch f {
		case "down":
			c.set.DownAfter = 1 + r.IntN(2)
		case "simple":
			for i := range c.set.Sinks {
				c.set.Sinks[i].KeepsOrder = false
			}
		case "twopoison":
			c.two = true
		case "nocrash":
			c.faults = 0
		}
	}
	return c
}

var modelSeeds = flag.Int("model.seeds", 120, "schedules per profile of TestModel")

// TestModel runs the ledger through random schedules. It holds I1 to I6, I11, the window, the bounds on duplicates, and
// that everything comes to an end once the faults do.
func TestModel(t *testing.T) {
	t.Parallel()
	seeds := *modelSeeds
	if testing.Short() {
		seeds = min(seeds, 60)
	}
	for _, filter := range []string{"", "simple,down", "twopoison,down"} {
		for _, p := range profiles {
			t.Run(p+" "+filter, func(t *testing.T) {
				t.Parallel()
				for s := range uint64(seeds) {
					runModel(t, p, s+1, filter)
				}
			})
		}
	}
}

func runModel(t *testing.T, profile string, seed uint64, filter string) {
	w := newWorld(configure(profile, seed, filter))
	w.trace = true // costs a third; without it a failure says nothing
	if err := w.finish(); err != nil {
		log := w.log
		if len(log) > 120 {
			log = log[len(log)-120:]
		}
		require.NoError(t, err, "profile %s filter %q seed %d window %d sinks %+v\n%s", profile, filter, seed, w.set.Window, w.set.Sinks, strings.Join(log, "\n"))
	}
}

func mBug(inv, format string, a ...any) { panic(violation{inv, fmt.Sprintf(format, a...)}) }

// TestModelCatches holds the model itself to account: each of these plugins breaks one rule of the protocol, and a check
// or the ledger's own eye on the protocol finds every one.
func TestModelCatches(t *testing.T) {
	t.Parallel()
	for _, mutation := range []string{
		"sink-forgets-failed-keys", "sink-keeps-publishing", "sink-loses-returned", "sink-returns-twice", "transport-selective",
		"source-ignores-window", "window-freed-before-delete",
	} {
		t.Run(mutation, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(1000) {
				for _, p := range profiles {
					w := newWorld(configure(p, seed+1, ""))
					w.mutation = mutation
					if w.finish() != nil {
						return
					}
				}
			}
			t.Fatal("not found in 7,000 schedules")
		})
	}
}
