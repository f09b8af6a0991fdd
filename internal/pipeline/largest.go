package pipeline

// The largest size within a limit: a line through what is known says where to look, exact
// predictions say what is there.

import (
	"math"
	"slices"
)

// mostSearched bounds the predictions for one largest size.
const mostSearched = 40

// divided is what a guess after one that missed is a multiple of.
const divided = 8

// LargestWithin finds the largest size whose total, in bytes, is within a limit: lo, 0 for
// none, and hi, the least known not to be. What is between them is divided where the line
// through the known totals, by size, meets the limit; they are added to. No size above
// most is tried. A size that cannot be has the total math.MaxInt64.
func LargestWithin(known map[int64]int64, limit, most int64, total func(size int64) (int64, error)) (lo, hi int64, asked int, err error) {
	for hi = math.MaxInt64; ; asked++ {
		for n, t := range known {
			if t <= limit {
				lo = max(lo, n)
			} else {
				hi = min(hi, n)
			}
		}
		if hi-lo <= 1 || asked >= mostSearched {
			return lo, hi, asked, nil
		}
		at := guess(known, lo, hi, limit, asked)
		if at > most {
			return lo, hi, asked, nil
		}
		if known[at], err = total(at); err != nil {
			return lo, hi, asked, err
		}
	}
}

// guess is a size strictly between lo, which fits, and hi, which does not: where the
// line through the two nearest sizes known meets the limit. Where the first such guess
// missed, the next has more divisors, so that a graph has more ways to compute it in
// parts. After a few guesses that did not end it there is no line, and the range is halved.
func guess(known map[int64]int64, lo, hi, limit int64, asked int) int64 {
	const straight = 3
	var sizes []int64
	for n, total := range known {
		if total < math.MaxInt64 {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	at := lo * 2
	if hi < math.MaxInt64 {
		at = lo + (hi-lo)/2
	}
	if len(sizes) >= 2 && asked < straight {
		// The two that enclose the limit, or the two last.
		i := max(1, min(len(sizes)-1, slices.IndexFunc(sizes, func(n int64) bool { return known[n] > limit })))
		if known[sizes[len(sizes)-1]] <= limit {
			i = len(sizes) - 1
		}
		a, b := sizes[i-1], sizes[i]
		if known[b] <= limit { // beyond all that is known: the line through the whole
			a = sizes[0]
		}
		if slope := float64(known[b]-known[a]) / float64(b-a); slope > 0 {
			at = a + int64(math.Floor(float64(limit-known[a])/slope))
			if near := (hi - 1) - (hi-1)%divided; asked == 1 && hi < math.MaxInt64 && near > lo {
				at = near
			}
			if at == lo { // the line says that one more does not fit: see
				at = lo + 1
			}
		}
	}
	if hi < math.MaxInt64 {
		at = min(at, hi-1)
	}
	return max(at, lo+1)
}
