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
	lines := ix.tradeoffLines()
	return func(work float64) int64 {
		var most float64
		for _, l := range lines {
			most = max(most, (l.cost-work)/l.price)
		}
		return ix.p.Graph.Held + int64(most)
	}
}

// LeastWork is the least work of a plan of p that holds at most so many bytes, as a share of the
// plain step's.
func LeastWork(p *Problem, bytes int64) float64 {
	var most float64
	for _, l := range p.indexed().tradeoffLines() {
		most = max(most, l.cost-l.price*float64(bytes-p.Graph.Held))
	}
	return p.Floor() + most/float64(max(1, p.FLOPs()))
}

// A line is a price of memory, in FLOPs for a byte, and what every plan costs at least, in FLOPs.
type line struct{ price, cost float64 }

// tradeoffLines are the lines by ascending price.
func (ix *index) tradeoffLines() []line {
	ix.tradeoffOnce.Do(func() { ix.lines = ix.findLines() })
	return ix.lines
}

func (ix *index) findLines() (lines []line) {
	for _, m := range ix.moments() {
		lines = append(lines, m.lines(ix)...)
	}
	return lines
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

// lines are those of the minimum cuts at the moment.
func (m *moment) lines(ix *index) (lines []line) {
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
	bytes := make([]int64, len(cut.stash))
	for k := range tradeoffPrices {
		price := ix.tune.sweepFrom * math.Pow(2, float64(k)/2)
		for i, r := range cut.stash {
			bytes[i] = int64(price * float64(ix.p.Graph.Values[r].Bytes))
		}
		lines = append(lines, line{price, float64(cut.cut(bytes)) + price*float64(ix.boundAt()[m.op])})
	}
	return lines
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
