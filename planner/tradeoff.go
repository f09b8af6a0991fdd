package planner

import "math"

// What plans hold at least for the work that they repeat.
//
//	held │ ·                    every price λ of memory is a line that no plan lies under
//	     │  ╲·
//	     │   ╲ ·  ·
//	     │    ╲──____ ·   ·
//	     └──────────────────── work
//
// Look at the moment at which a backward operator o first runs, in any schedule whatever.
// Of the forward values that o's ancestors made and that a descendant of it reads,
// each is held then, or is computed again later: it, and of what it is made of what is not held
// then. What is neither an ancestor nor a descendant of o, as the slope of an activation, has run, and
// what it made for a descendant is held; or it runs later, which costs nothing, but what it reads is
// wanted then. Beside them lies what LowerBound counts at o: what it reads, among others, and makes. So
// work repeated + λ · bytes held is at least λ times that and the minimum cut of the network of
// mincut.go with these readers alone, for every λ. As o serve two: of operators anywhere, and of those
// that hold much themselves, the one at which most bytes lie.
//
// Weakness: of what lives beside these values it counts only what o forces; of the least peak
// LowerBound says more, so HoldsMore asks both.

// tradeoffs is how many operators are tried as o, spread over the order, and as many of those that hold
// by themselves at most tradeoffHigh less than the one that holds most. tradeoffPrices is
// the number of prices, each √2 times the one before, in FLOPs for a byte.
const tradeoffs, tradeoffHigh, tradeoffPrices = 64, 1. / 4, 33

// noWork is a share of the plain step's work that is less than rounding adds to a bound.
const noWork = 1e-6

// tradeoffStep is how far apart the shares of work are at which the bound is compared.
const tradeoffStep = 1.0 / 256

// HoldsMore reports that every plan of p holds at least what limit says of its work, as a
// share of the plain step's. No limit is higher for more work.
func HoldsMore(p *Problem, limit func(work float64) int64) bool {
	left := keepsMore(p, limit)
	return left == 0 || left < math.MaxInt64 && LowerBound(p) >= left
}

// KeepsMore is HoldsMore by what is kept for backward, or computed again, alone: whatever
// operators hold that run at the end, as updates do.
func KeepsMore(p *Problem, limit func(work float64) int64) bool { return keepsMore(p, limit) == 0 }

// keepsMore is the first limit in bytes that what is kept may go below, 0 where there is none; no
// limit of more work is higher.
func keepsMore(p *Problem, limit func(work float64) int64) int64 {
	least := p.indexed().tradeoff()
	plain, from := float64(p.FLOPs()), p.Floor()
	if plain <= 0 {
		return math.MaxInt64
	}
	for again := 0.0; ; again += tradeoffStep {
		most := limit(from + again)
		if most <= p.Graph.Held {
			return 0
		}
		if least((again+tradeoffStep)*plain) < most {
			return most
		}
	}
}

// tradeoff returns the bytes that a plan holds at least which repeats some work, in FLOPs.
func (ix *index) tradeoff() func(work float64) int64 {
	return func(work float64) int64 {
		most := ix.mostOf(func(l line) float64 { return (l.cost - work) / l.price })
		return ix.p.Graph.Held + int64(max(0, most))
	}
}

// LeastWork is the least work of a plan of p that holds at most so many bytes, as a share of the
// plain step's.
func LeastWork(p *Problem, bytes int64) float64 {
	most := p.indexed().mostOf(func(l line) float64 { return l.cost - l.price*float64(bytes-p.Graph.Held) })
	return p.Floor() + max(0, most)/float64(max(1, p.FLOPs()))
}

// A line is a price of memory, in FLOPs for a byte, and what every plan costs at least, in FLOPs.
type line struct{ price, cost float64 }

// mostOf is the most that a line says, -∞ where there is none. As the price rises, what lines say of a work or
// of a size rises and then falls, for what they cost is concave.
func (ix *index) mostOf(says func(line) float64) float64 {
	ix.tradeoffLock.Lock()
	defer ix.tradeoffLock.Unlock()
	if ix.tradeoffs == nil {
		ix.tradeoffs = []*tradeoff{}
		for _, m := range ix.moments() {
			ix.tradeoffs = append(ix.tradeoffs, m.tradeoff(ix))
		}
	}
	most := math.Inf(-1)
	for _, t := range ix.tradeoffs {
		most = max(most, t.most(says))
	}
	return most
}

// A tradeoff is the lines of one moment, each found when it is first asked for.
type tradeoff struct {
	ix  *index
	cut *keepCut
	own int64                 // what the operator itself holds, in bytes
	of  [tradeoffPrices]*line // nil before it is asked for
	at  int                   // the one that said most last
}

// most is the most that a line says: from the last one in steps that get shorter.
func (t *tradeoff) most(says func(line) float64) float64 {
	most := says(t.line(t.at))
	for step := tradeoffPrices / 4; step > 0; step /= 2 {
		for _, way := range [2]int{-step, step} {
			for k := t.at + way; k >= 0 && k < len(t.of); k += way {
				said := says(t.line(k))
				if said <= most {
					break
				}
				most, t.at = said, k
			}
		}
	}
	return most
}

// line is that of the k-th price.
func (t *tradeoff) line(k int) line {
	if t.of[k] == nil {
		price := t.ix.tune.sweepFrom * math.Pow(2, float64(k)/2)
		bytes := make([]int64, len(t.cut.stash))
		for i, r := range t.cut.stash {
			bytes[i] = int64(price * float64(t.ix.p.Graph.Values[r].Bytes))
		}
		t.of[k] = &line{price, float64(t.cut.cut(bytes)) + price*float64(t.own)}
	}
	return *t.of[k]
}

// A moment is that at which an operator first runs: what runs then or descends from it, and what it
// descends from.
type moment struct {
	op            int
	after, before []bool
}

// moments are those of a few backward operators: where most is held in between, of operators spread over the
// order, and of the first of those that hold most themselves.
func (ix *index) moments() (list []moment) {
	var backward, high []int
	var most int64
	bounds := ix.boundAt()
	for _, op := range ix.topo {
		if !ix.p.Ops[op].Forward {
			backward = append(backward, op)
			most = max(most, bounds[op])
		}
	}
	for _, op := range backward {
		if bounds[op] >= most-part(tradeoffHigh, most) {
			high = append(high, op)
		}
	}
	spread := make([]int, min(tradeoffs, len(backward)))
	for k := range spread {
		spread[k] = backward[k*len(backward)/len(spread)]
	}
	for _, ops := range [][]int{spread, high[:min(tradeoffs, len(high))]} {
		if m := ix.widest(ops); m.after != nil && (len(list) == 0 || list[0].op != m.op) {
			list = append(list, m)
		}
	}
	return list
}

// widest is of the moments of some operators the one at which most bytes lie: of droppable values that are
// made before and read after, and of what the operator holds itself.
func (ix *index) widest(ops []int) (widest moment) {
	most := int64(-1)
	for _, op := range ops {
		after, before := ix.around(op)
		if bytes := ix.across(after, before) + ix.boundAt()[op]; bytes > most {
			most, widest = bytes, moment{op, after, before}
		}
	}
	return widest
}

// tradeoff is that of the moment.
func (m *moment) tradeoff(ix *index) *tradeoff {
	own := map[int]bool{} // is held whatever is repeated, and counted with the operator
	for _, v := range ix.reads[m.op] {
		own[ix.root[v]] = true
	}
	cut := newNetwork(ix, network{
		cost:   func(op int) int64 { return ix.p.Ops[op].FLOPs },
		reads:  func(op int) bool { return m.after[op] },
		counts: func(r int) bool { return m.before[ix.producer[r]] && !own[r] },
		waits:  func(op int) bool { return !m.before[op] && !m.after[op] },
	})
	return &tradeoff{ix: ix, cut: cut, own: ix.boundAt()[m.op], at: tradeoffPrices / 2}
}

// around marks an operator and its descendants, and its ancestors.
func (ix *index) around(o int) (after, before []bool) {
	after, before = make([]bool, len(ix.reads)), make([]bool, len(ix.reads))
	after[o] = true
	for _, op := range ix.topo {
		for _, v := range ix.reads[op] {
			after[op] = after[op] || ix.producer[v] >= 0 && after[ix.producer[v]]
		}
	}
	below := []int{o}
	for len(below) > 0 {
		op := below[len(below)-1]
		below = below[:len(below)-1]
		for _, v := range ix.reads[op] {
			if j := ix.producer[v]; j >= 0 && !before[j] {
				before[j] = true
				below = append(below, j)
			}
		}
	}
	return after, before
}

// across is the size of the droppable values that operators before made and backward ones
// after read.
func (ix *index) across(after, before []bool) int64 {
	var sum int64
	for _, r := range ix.stash {
		if !before[ix.producer[r]] {
			continue
		}
		for _, op := range ix.readers[r] {
			if after[op] && !ix.p.Ops[op].Forward {
				sum += ix.p.Graph.Values[r].Bytes
				break
			}
		}
	}
	return sum
}
