package planner

import "github.com/onnx-remat/remat/ortmodel"

// Settling: a schedule as ONNX Runtime can run it.
//
// ONNX Runtime runs a node when somebody asks for it. A schedule may have
// stretches that run before (strays, see ortmodel.Strays). The file can bring
// each of them in by an anchor, a few nodes more; but most of them may as well
// wait for their reader. So of the strays only those stay without which the
// step would hold more:
//
//	all wait ─▶ no worse? done
//	         └▶ one after the other waits, as long as that is no worse
//
// What comes out is the order that the written file runs, strays included.

const (
	maxSettleRounds = 3
	maxSettleTries  = 32
)

// A settled plan is spelled out and counted.
type settled struct {
	plan   *Plan
	prog   *Program
	graph  *ortmodel.Graph
	first  []int
	sim    *ortmodel.Simulator
	wanted []int
	peak   int64
	strays []ortmodel.Stray
}

func (p *Problem) count(pl *Plan) (*settled, error) {
	prog, err := Expand(p, pl)
	if err != nil {
		return nil, err
	}
	s := &settled{plan: pl, prog: prog}
	s.graph, s.first = prog.Graph(p)
	s.wanted = make([]int, len(s.graph.Nodes))
	for i := range s.wanted {
		s.wanted[i] = i
	}
	s.sim = ortmodel.NewSimulator(s.graph)
	s.peak = s.sim.Peak(s.wanted)
	s.strays = ortmodel.Strays(s.graph, s.wanted)
	return s, nil
}

// settle returns the plan with the schedule that the written file will run.
func (p *Problem) settle(pl *Plan) *Plan {
	s, err := p.settled(pl)
	if err != nil {
		return pl // which Expand refuses again where it is used
	}
	return s.plan
}

func (p *Problem) settled(pl *Plan) (*settled, error) {
	s, err := p.count(pl)
	if err != nil {
		return nil, err
	}
	for round := 0; round < maxSettleRounds && len(s.strays) > 0; round++ {
		next := p.waiting(s, ortmodel.Lazy(s.graph, s.wanted))
		if next == nil {
			next = p.waiting(s, s.fewer())
		}
		if next == nil {
			break
		}
		s = next
	}
	return s, nil
}

// fewer lets one stray after the other wait and returns the order with those
// left without which the step would hold more.
func (s *settled) fewer() []int {
	kept := s.strays
	order, peak := s.wanted, s.peak
	for k := len(s.strays) - 1; k >= max(0, len(s.strays)-maxSettleTries); k-- {
		without := append(append([]ortmodel.Stray(nil), kept[:k]...), kept[k+1:]...)
		o := ortmodel.Lazy(s.graph, s.wanted, without...)
		if p := s.sim.Peak(o); p <= peak {
			kept, order, peak = without, o, p
		}
	}
	return order
}

// waiting returns the plan that runs an order of s's graph, or nil if that is
// no improvement: more is held, or no stray less is left at the same peak, or
// the order is no schedule, because a reader would take another instance.
func (p *Problem) waiting(s *settled, order []int) *settled {
	if s.sim.Peak(order) > s.peak {
		return nil
	}
	instance := make(map[int]int, len(s.first)) // node -> instance
	for i, node := range s.first {
		instance[node] = i
	}
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
	if err != nil || next.peak > s.peak || next.peak == s.peak && len(next.strays) >= len(s.strays) {
		return nil
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
