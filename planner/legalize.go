package planner

import (
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// Legalizing: a schedule as ONNX Runtime can run it.
//
// ONNX Runtime runs a node when somebody asks for it. A schedule may have
// stretches that run before (early nodes, see ortmodel.EarlyNodes). The file can bring
// each of them in by a control edge, a few nodes more; but most of them may as well
// wait for their reader. So of the early nodes only those stay without which the
// step would hold more:
//
//	one of the last waits ─▶ better? it does
//	all wait ─▶ no worse? done
//	         └▶ half of them, the other half, then halves of what is worse
//
// What comes out is the order that the written file runs, early nodes included.

// A legalized plan is spelled out and counted.
type legalized struct {
	plan   *Plan
	prog   *Program
	graph  *ortmodel.Graph // of the written file, barriers included
	first  []int           // instance -> its node in graph
	orders *ortmodel.Schedules
	sim    *ortmodel.Simulator
	wanted []int // the order of graph's nodes that the plan says
	peak   int64 // bytes, in that order
	early  []ortmodel.EarlyNode
	// stay says of an operator that it runs early whatever it costs, nil of none.
	stay func(op int) bool
	tune *tuning
}

// count spells a plan out and counts what it holds in its own order, and finds which
// nodes run early there.
func (p *Problem) count(pl *Plan) (*legalized, error) {
	s, err := p.spell(pl)
	if err == nil {
		s.findEarly()
	}
	return s, err
}

// spell is count for who asks what the plan holds, and may find the early nodes later.
func (p *Problem) spell(pl *Plan) (*legalized, error) {
	prog, err := Expand(p, pl)
	if err != nil {
		return nil, err
	}
	s := &legalized{plan: pl, prog: prog, tune: p.tuning()}
	s.graph, s.first = prog.Graph(p)
	s.wanted = ortmodel.FileSchedule(len(s.graph.Nodes))
	s.sim = ortmodel.NewSimulator(s.graph)
	s.peak = s.sim.Peak(s.wanted)
	return s, nil
}

func (s *legalized) findEarly() {
	s.orders = ortmodel.NewSchedules(s.graph)
	s.early = s.orders.EarlyNodes(s.wanted)
}

// Legalize returns a plan with a schedule that the written file can run with as few
// control edges as it takes, and that holds no more; the plan itself where none was
// found. The operators that stay run early where the plan has them run early; nil: none.
func Legalize(p *Problem, pl *Plan, stay func(op int) bool) *Plan {
	s, err := p.count(pl)
	if err != nil {
		return pl // which Expand refuses again where it is used
	}
	s.stay = stay
	return p.legalized(s).plan
}

// settle returns the plan with the best schedule found that the written file will run.
func (p *Problem) settle(pl *Plan) *Plan {
	s, err := p.count(pl)
	if err != nil {
		return pl
	}
	return p.settled(s).plan
}

// settled returns the counted plan legalized, and moved where that is better.
func (p *Problem) settled(s *legalized) *legalized { return p.moved(p.legalized(s)) }

// legalized returns the counted plan with as few early nodes as it takes.
func (p *Problem) legalized(s *legalized) *legalized {
	if !s.tune.runs(stageLegalize) {
		return s
	}
	if len(s.early) == 0 {
		return s
	}
	if next := p.waiting(s, s.single()); next != nil && next.peak < s.peak {
		s = next
	}
	for round := 0; round < p.tuning().legalizeRounds && len(s.early) > 0; round++ {
		stay, _ := s.parted()
		next, all := p.waiting(s, s.orders.Lazy(s.wanted, stay...)), false
		if next == nil {
			var order []int
			order, all = s.fewer()
			next = p.waiting(s, order)
		}
		if next != nil {
			s = next
		}
		if next == nil || all {
			break
		}
	}
	if next := p.waiting(s, s.atPeak()); next != nil {
		s = next
	}
	return s
}

// parted returns the early nodes that stay, and those that may wait.
func (s *legalized) parted() (stay, free []ortmodel.EarlyNode) {
	if s.stay == nil {
		return nil, s.early
	}
	instance := s.instances()
	for _, e := range s.early {
		if i, ok := instance[e.Top]; ok && s.stay(s.prog.Instances[i].Op) {
			stay = append(stay, e)
		} else {
			free = append(free, e)
		}
	}
	return stay, free
}

// instances maps a node of the graph to the instance that it executes; a barrier has none.
func (s *legalized) instances() map[int]int {
	instance := make(map[int]int, len(s.first))
	for i, node := range s.first {
		instance[node] = i
	}
	return instance
}

// single lets one after the other of the last early nodes wait where less is held
// then: the peak of a plain step is in the middle, where backward begins, and
// what waits past it is not in it.
func (s *legalized) single() []int {
	stay, kept := s.parted()
	order, peak, n := s.wanted, s.peak, len(kept)
	for k := n - 1; k >= max(0, n-s.tune.legalizeSingles); k-- {
		without := append(append([]ortmodel.EarlyNode(nil), kept[:k]...), kept[k+1:]...)
		o := s.orders.Lazy(s.wanted, slices.Concat(stay, without)...)
		if held := s.sim.Peak(o); held <= peak {
			order, peak, kept = o, held, without
		}
	}
	return order
}

// atPeak lets early nodes wait, one after the other, that are brought in while most is held: the
// control edge that does it holds a number then, which no count of the plan has.
func (s *legalized) atPeak() []int {
	order := s.wanted
	stay, kept := s.parted()
	if len(kept) == 0 {
		return order
	}
	held := slices.Clone(s.sim.Profile(order))
	for k, tries := len(kept)-1, 0; k >= 0 && tries < s.tune.legalizeAtPeak; k-- {
		if top := kept[k].Top; held[top] < s.peak || held[top+1] < s.peak { // what is in between is in both
			continue
		}
		tries++
		without := append(append([]ortmodel.EarlyNode(nil), kept[:k]...), kept[k+1:]...)
		if o := s.orders.Lazy(s.wanted, slices.Concat(stay, without)...); s.sim.Peak(o) <= s.peak {
			order, kept = o, without
		}
	}
	return order
}

// fewer lets stretches of early nodes wait, the longest first, and returns the order
// with those left without which the step would hold more; all: each early node left
// was tried alone.
func (s *legalized) fewer() (order []int, all bool) {
	type stretch struct{ from, to int }
	stay, free := s.parted()
	n := len(free)
	waits := make([]bool, n)
	order = s.wanted
	peak := s.peak
	untried := []stretch{{0, n / 2}, {n / 2, n}}
	for try := 0; try < s.tune.legalizeHalves && len(untried) > 0; try++ {
		u := untried[0]
		untried = untried[1:]
		kept := slices.Clone(stay)
		for k := range free {
			if !waits[k] && (k < u.from || k >= u.to) {
				kept = append(kept, free[k])
			}
		}
		o := s.orders.Lazy(s.wanted, kept...)
		if held := s.sim.Peak(o); held <= peak {
			order, peak = o, held
			for k := u.from; k < u.to; k++ {
				waits[k] = true
			}
		} else if mid := (u.from + u.to) / 2; mid > u.from {
			untried = append(untried, stretch{u.from, mid}, stretch{mid, u.to})
		}
	}
	return order, len(untried) == 0
}

// waiting returns the plan that runs an order of s's graph, or nil if that is
// no improvement: more is held, or no early node less is left at the same peak, or
// a reader would take another instance. (Where operators stay it may: they were put
// behind what is computed again. A search finds nothing by such orders: the same files, or
// two nodes more.)
func (p *Problem) waiting(s *legalized, order []int) *legalized {
	if slices.Equal(order, s.wanted) || s.sim.Peak(order) > s.peak {
		return nil
	}
	instance := s.instances()
	plan := *s.plan
	plan.Schedule = make([]int, 0, len(s.first))
	var at []int // place in the new schedule -> instance
	for _, node := range order {
		if i, ok := instance[node]; ok {
			plan.Schedule = append(plan.Schedule, s.prog.Instances[i].Op)
			at = append(at, i)
		}
	}
	next, err := p.count(&plan)
	if err != nil || next.peak > s.peak || next.peak == s.peak && len(next.early) >= len(s.early) {
		return nil
	}
	if next.stay = s.stay; s.stay != nil {
		return next
	}
	for k, i := range at {
		if !sameInputs(&next.prog.Instances[k], &s.prog.Instances[i]) {
			return nil
		}
	}
	return next
}

// sameInputs reports that two executions of one operator read the same.
func sameInputs(a, b *Instance) bool {
	for k := range a.Inputs {
		if a.Inputs[k] != b.Inputs[k] {
			return false
		}
	}
	for k := range a.Captures {
		if a.Captures[k] != b.Captures[k] {
			return false
		}
	}
	return a.Copy == b.Copy
}
