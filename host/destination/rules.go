package destination

import (
	"fmt"
	"regexp/syntax"
	"sort"
	"unicode"
	"unicode/utf8"
)

// Rules are what a sink says of its destinations (Destination in the protocol's Describe). They are immutable.
type Rules struct {
	noun     string
	maxBytes int
	ascii    [utf8.RuneSelf]bool // forbidden
	ranges   []rune              // forbidden: pairs of first and last, sorted, all characters
}

// NewRules compiles forbidden, an RE2 character class or "", to a look-up that costs nothing per ASCII character.
// maxBytes 0 means no limit.
func NewRules(noun, forbidden string, maxBytes int) (*Rules, error) {
	if noun == "" {
		noun = "destination"
	}
	r := &Rules{noun: noun, maxBytes: maxBytes}
	if forbidden == "" {
		return r, nil
	}
	re, err := syntax.Parse(forbidden, syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("parse forbidden characters %q: %w", forbidden, err)
	}
	switch {
	case re.Op == syntax.OpCharClass:
		r.ranges = re.Rune
	case re.Op == syntax.OpLiteral && len(re.Rune) == 1: // [x] and [xX] are simplified to a literal
		r.ranges = orbit(re.Rune[0], re.Flags&syntax.FoldCase != 0)
	case re.Op == syntax.OpAnyChar:
		r.ranges = []rune{0, unicode.MaxRune}
	case re.Op == syntax.OpAnyCharNotNL:
		r.ranges = []rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune}
	case re.Op == syntax.OpNoMatch:
	default:
		return nil, fmt.Errorf("forbidden characters %q are not one RE2 character class", forbidden)
	}
	for i := range r.ascii {
		r.ascii[i] = r.inRanges(rune(i))
	}
	return r, nil
}

// orbit is the pairs of c and, with fold, of the characters that differ from it in case only.
func orbit(c rune, fold bool) []rune {
	all := []rune{c}
	if fold {
		for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
			all = append(all, f)
		}
	}
	sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
	pairs := make([]rune, 0, 2*len(all))
	for _, f := range all {
		pairs = append(pairs, f, f)
	}
	return pairs
}

func (r *Rules) inRanges(c rune) bool {
	i := sort.Search(len(r.ranges)/2, func(i int) bool { return r.ranges[2*i+1] >= c })
	return 2*i < len(r.ranges) && r.ranges[2*i] <= c
}

// find returns the first forbidden character of what came out of an event; utf8.RuneError where it is not UTF-8.
func (r *Rules) find(b []byte) (rune, bool) {
	for i := 0; i < len(b); {
		if c := b[i]; c < utf8.RuneSelf {
			if r.ascii[c] {
				return rune(c), true
			}
			i++
			continue
		}
		c, n := utf8.DecodeRune(b[i:])
		if (c == utf8.RuneError && n == 1) || r.inRanges(c) {
			return c, true
		}
		i += n
	}
	return 0, false
}
