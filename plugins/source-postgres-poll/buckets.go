package main

import (
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/relevo-io/relevo/internal/outbox"
)

// buckets is a set of them.
type buckets uint64

const allBuckets = ^buckets(0)

// bucketCounts are figures for each bucket.
type bucketCounts [outbox.Buckets]int32

func (s buckets) has(b int) bool { return s>>b&1 != 0 }
func (s buckets) count() int     { return bits.OnesCount64(uint64(s)) }

// each yields them in order.
func (s buckets) each(yield func(b int) bool) {
	for ; s != 0; s &= s - 1 {
		if !yield(bits.TrailingZeros64(uint64(s))) {
			return
		}
	}
}

// outlook is what one look at the locks showed. Nobody decides for all: each relay finds out by itself what to take and
// how much to give, from the same locks by the same rules. Where two have seen different things, a lock that is taken
// already and the next look put it right.
type outlook struct {
	me     int32
	relays []int32               // their sessions' pids, ascending, me among them
	owner  [outbox.Buckets]int32 // 0: free
}

// counts is how many buckets each relay has, in the order of relays.
func (o *outlook) counts() []int {
	n := make([]int, len(o.relays))
	for _, pid := range o.owner {
		if i, ok := slices.BinarySearch(o.relays, pid); ok {
			n[i]++
		}
	}
	return n
}

// share is what each has once all are content: low, and high for as many as there is a remainder of.
func (o *outlook) share() (low, high, remainder int) {
	low, remainder = outbox.Buckets/len(o.relays), outbox.Buckets%len(o.relays)
	if high = low; remainder > 0 {
		high++
	}
	return low, high, remainder
}

// of are the buckets of one owner; 0: the free ones.
func (o *outlook) of(pid int32) (s buckets) {
	for b, p := range o.owner {
		if p == pid {
			s |= 1 << b
		}
	}
	return s
}

// take are the free buckets that are for us to take. Those who lack some are served in the order of their pids, so that
// nobody reaches for the same one.
func (o *outlook) take() (mine buckets) {
	free, counts := o.of(0), o.counts()
	low, high, _ := o.share()
	serve := func(upTo int) {
		for i, pid := range o.relays {
			for free != 0 && counts[i] < upTo {
				next := free & -free
				free &^= next
				counts[i]++
				if pid == o.me {
					mine |= next
				}
			}
		}
	}
	serve(low)
	serve(high)
	return mine
}

// surplus is how many buckets we have that others lack. Whoever has more than the high share gives first; only when that
// has settled, and more relays have the high share than may, do the last of them give one each. So none is given that is
// taken back.
func (o *outlook) surplus() int {
	counts := o.counts()
	_, high, remainder := o.share()
	me, _ := slices.BinarySearch(o.relays, o.me)
	if counts[me] != high || remainder == 0 {
		return max(0, counts[me]-high)
	}
	atHigh, before := 0, 0
	for i, n := range counts {
		if n > high {
			return 0
		}
		if n == high {
			atHigh++
			if i < me {
				before++
			}
		}
	}
	if o.of(0) == 0 && atHigh > remainder && before >= remainder {
		return 1
	}
	return 0
}

// choose picks n of owned to give: not the pinned ones, and those that are being given already before others, which are
// drawn: by what is in flight the idle ones would go, and the work would stay. Fewer than n where there are no more.
func choose(n int, owned, giving, pinned buckets) (give buckets) {
	for _, candidates := range []buckets{giving & owned &^ pinned, owned &^ giving &^ pinned} {
		list := slices.Collect(candidates.each)
		rand.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, b := range list[:min(n-give.count(), len(list))] {
			give |= 1 << b
		}
	}
	return give
}
