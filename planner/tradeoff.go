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
// Of the forward values that o's ancestors made and that o or a descendant of it reads,
// each is held then, or is computed again later: it, and of what it is made of what is not held
// then. So work repeated + λ · bytes held is at least the minimum cut of the network of
// mincut.go with these readers alone, for every λ. As o serves the one over which most of
// these bytes are read.
//
// Weakness: it ignores what lives beside these values, so it says something where little
// work is to be repeated; of the least peak LowerBound says more, so HoldsMore asks both.

// tradeoffs is how many operators are tried as o, spread over the order, and tradeoffPrices
// the number of prices, each √2 times the one before, in FLOPs for a byte.
const tradeoffs, tradeoffPrices = 64, 33

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
	if wanted, before := ix.widest(); wanted != nil {
		cut := newNetwork(ix, network{
			cost:   func(op int) int64 { return ix.p.Ops[op].FLOPs },
			reads:  func(op int) bool { return wanted[op] },
			counts: func(r int) bool { return before[ix.producer[r]] },
		})
		bytes := make([]int64, len(cut.stash))
		for k := range tradeoffPrices {
			l := line{price: ix.tune.sweepFrom * math.Pow(2, float64(k)/2)}
			for i, r := range cut.stash {
				bytes[i] = int64(l.price * float64(ix.p.Graph.Values[r].Bytes))
			}
			l.cost = float64(cut.cut(bytes))
			lines = append(lines, l)
		}
	}
	return lines
}

// widest returns, of some backward operator, itself and its descendants, and its ancestors:
// of those tried the one with the most bytes that these read and those made.
func (ix *index) widest() (after, before []bool) {
	var backward []int
	for _, op := range ix.topo {
		if !ix.p.Ops[op].Forward {
			backward = append(backward, op)
		}
	}
	most := int64(-1)
	for k := range min(tradeoffs, len(backward)) {
		a, b := ix.around(backward[k*len(backward)/tradeoffs])
		if bytes := ix.across(a, b); bytes > most {
			most, after, before = bytes, a, b
		}
	}
	return after, before
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
