package train

// A rank that is slow holds all others up, and only it can tell: it waits for nobody. So
// ranks tell each other how long they computed.

import "slices"

// A rank is slow that computes slowFactor times as long as the median of all, slowTimes
// times in a row that ranks agree.
const (
	slowFactor = 1.5
	slowTimes  = 10
)

// lag finds a rank that is slow.
type lag struct {
	rank, times int
	named       map[int]bool
}

// add takes the seconds of all ranks since they agreed last. It returns a rank that has
// become slow and how many times as long as the median it takes, and false for none; each
// rank is named once.
func (l *lag) add(seconds []float32) (rank int, factor float64, slow bool) {
	sorted := slices.Sorted(slices.Values(seconds))
	median := float64(sorted[(len(sorted)-1)/2])
	rank = slices.Index(seconds, sorted[len(sorted)-1])
	factor = float64(seconds[rank]) / median
	if len(seconds) < 2 || median <= 0 || factor < slowFactor {
		l.times = 0
		return rank, factor, false
	}
	if rank != l.rank {
		l.rank, l.times = rank, 0
	}
	if l.times++; l.times < slowTimes || l.named[rank] {
		return rank, factor, false
	}
	if l.named == nil {
		l.named = map[int]bool{}
	}
	l.named[rank] = true
	return rank, factor, true
}
