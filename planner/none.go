package planner

import (
	"cmp"
	"slices"

	"github.com/onnx-remat/remat/ortmodel"
)

// A step that computes nothing again: only its order is chosen.
//
//	order that plans are built on ─┐ legalized   the best two,   the one whose
//	the graph's own ───────────────┼───────────▶ moved ────────▶ control edges
//	greedy, where it holds less ───┘                             are worth it

// solveNone takes the best order found: that of Ordered, or a greedy one, moved.
func solveNone(p *Problem, o Options) (*Plan, error) {
	best, err := p.indexed().none()
	if err != nil {
		return nil, err
	}
	plan := *best.plan
	plan.Strategy = o.strategy()
	return &plan, nil
}

// none is what solveNone finds, once.
func (ix *index) none() (*legalized, error) {
	ix.noneOnce.Do(func() { ix.noneIs, ix.noneErr = ix.p.findNone() })
	return ix.noneIs, ix.noneErr
}

func (p *Problem) findNone() (*legalized, error) {
	starts, err := p.orders()
	if err != nil {
		return nil, err
	}
	best := starts[0]
	if !p.tuning().runs(stageMoves) {
		return best, nil
	}
	if s := p.greedyStart(best); s != nil {
		starts = append(starts, s)
	}
	// A control edge has to save its share here too.
	worth := func(s *legalized) int64 { return s.peak + int64(len(s.early))*part(p.tuning().edgeGain, best.peak) }
	byWorth := func(a, b *legalized) int { return cmp.Compare(worth(a), worth(b)) }
	slices.SortStableFunc(starts, byWorth)
	found := []*legalized{best}
	for _, s := range starts[:min(len(starts), p.tuning().starts)] {
		if s = p.moved(s); s.peak <= best.peak {
			found = append(found, s)
		}
	}
	return slices.MinFunc(found, byWorth), nil
}

// Ordered returns a plan that keeps everything, in the better of two orders: the one
// that plans are built on, and the graph's own. It is what a graph is derived with:
// it keeps alike what is alike, as the layers of a stack, which plans begin with.
func Ordered(p *Problem) (*Plan, error) {
	list, err := p.orders()
	if err != nil {
		return nil, err
	}
	return list[0].plan, nil
}

// orders are the order that plans are built on and the graph's own, legalized, the
// better one first.
func (p *Problem) orders() ([]*legalized, error) {
	ix := p.indexed()
	base := ix.plain()
	plain, err := p.count(&Plan{Strategy: "none", Schedule: slices.Clone(base.order), ControlEdges: base.controlEdges})
	if err != nil {
		return nil, err
	}
	plain = p.legalized(plain)
	given, err := p.count(&Plan{Strategy: "none", Schedule: slices.Clone(ix.topo)})
	if err != nil {
		return []*legalized{plain}, nil
	}
	if given = p.legalized(given); given.peak < plain.peak {
		return []*legalized{given, plain}, nil
	}
	return []*legalized{plain, given}, nil
}

// greedyStart returns the best of the greedy orders, legalized, nil if it holds more
// than the best by startShare before that.
func (p *Problem) greedyStart(best *legalized) *legalized {
	ix := p.indexed()
	sim := ortmodel.NewSimulator(&p.Graph)
	var start []int
	least := best.peak + part(ix.tune.startShare, best.peak)
	for _, order := range ix.candidates()[1:] {
		if peak := sim.Peak(order); peak < least {
			least, start = peak, order
		}
	}
	if start == nil {
		return nil
	}
	s, err := p.count(&Plan{Strategy: "none", Schedule: slices.Clone(start)})
	if err != nil {
		return nil
	}
	return p.legalized(s)
}
