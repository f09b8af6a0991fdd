package planner

import (
	"math/rand"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
)

// TestMovesLowerThePeak: what moves find is an order of the plan's graph that says the
// same plan, holds less than before, is the same every time, and costs no more control
// edges than it saves.
func TestMovesLowerThePeak(t *testing.T) {
	r := rand.New(rand.NewSource(11))
	problems := []*Problem{chain(40), transformer(2, 64, 32, 16, 2)}
	for range 40 {
		problems = append(problems, random(r, 3+r.Intn(30)))
	}
	found, kept := 0, 0
	for k, p := range problems {
		for _, strategy := range []string{"none", "full", "selective"} {
			plan, err := unmoved(p, strategy)
			if err != nil {
				continue // no layers
			}
			s, err := p.count(plan)
			if err != nil {
				t.Fatal(err)
			}
			m := newMover(p, s)
			order := m.improve()
			if again := newMover(p, s).improve(); !slices.Equal(order, again) {
				t.Errorf("problem %d, %s: another order the second time", k, strategy)
			}
			if order == nil {
				continue
			}
			found++
			if !ortmodel.Valid(s.graph, order) || s.sim.Peak(order) >= s.peak {
				t.Errorf("problem %d, %s: no better order: %d bytes after %d", k, strategy, s.sim.Peak(order), s.peak)
			}
			next := p.moved(s)
			if next == s {
				continue // as a plan it takes other barriers, and holds more
			}
			kept++
			if err := next.plan.Check(p); err != nil {
				t.Errorf("problem %d, %s: %v", k, strategy, err)
			}
			if next.peak >= s.peak || next.plan.RecomputeFLOPs(p) != s.plan.RecomputeFLOPs(p) {
				t.Errorf("problem %d, %s: %d bytes after %d, work %d after %d", k, strategy, next.peak, s.peak, next.plan.RecomputeFLOPs(p), s.plan.RecomputeFLOPs(p))
			}
		}
	}
	if t.Logf("%d orders found, %d kept", found, kept); found < 25 || 10*kept < 9*found {
		t.Errorf("%d orders found, %d kept", found, kept)
	}
}

// unmoved is a strategy's plan without moves.
func unmoved(p *Problem, strategy string) (*Plan, error) {
	q := p.WithOps(p.Ops)
	setting := standard
	setting.off = stageMoves
	q.tuned = &setting
	return Solve(q, strategy)
}

// TestMovesPastThePeak: one value is made too early, another is read too late, and
// each is moved with what goes along.
func TestMovesPastThePeak(t *testing.T) {
	const big, small = 1 << 20, 1 << 10
	p := &Problem{Loss: ortmodel.None}
	value := func(name string, bytes int64, kind ortmodel.Kind) int {
		p.Values = append(p.Values, ValueInfo{Name: name, Role: Activation})
		p.Graph.Values = append(p.Graph.Values, ortmodel.Value{Bytes: bytes, Class: len(p.Values), Kind: kind})
		return len(p.Values) - 1
	}
	op := func(name string, out int, in ...int) {
		p.Ops = append(p.Ops, Op{Name: name, Type: "Op", FLOPs: 1, Forward: true})
		p.Graph.Nodes = append(p.Graph.Nodes, ortmodel.Node{Inputs: in, Outputs: []int{out}})
	}
	x := value("x", small, ortmodel.Feed)
	m, view, s := value("m", big, ortmodel.Inner), value("view", big, ortmodel.Inner), value("s", small, ortmodel.Inner)
	w, part := value("w", big, ortmodel.Inner), value("part", small, ortmodel.Inner)
	a, b := value("a", 4*big, ortmodel.Inner), value("b", small, ortmodel.Inner)
	end := value("end", small, ortmodel.Output)
	op("m", m, x) // too early: s reads it at the end
	op("view", view, m)
	p.Graph.Nodes[1].Alias = []ortmodel.Pair{{}}
	op("w", w, x)
	op("a", a, x)
	op("b", b, a)
	op("part", part, w) // too late: it could run before a
	op("s", s, view)
	op("end", end, s, b, part)
	s0, err := p.count(&Plan{Strategy: "none", Schedule: []int{0, 1, 2, 3, 4, 5, 6, 7}})
	if err != nil {
		t.Fatal(err)
	}
	if s1 := p.moved(s0); s0.peak < 6*big || s1.peak >= 4*big+8*small {
		t.Errorf("%d bytes before, %d after: %v", s0.peak, s1.peak, s1.plan.Schedule)
	}
}

// TestWaitsAtThePeak: a node that a control edge would bring in while most is held waits where
// it may, whatever else legalizing comes to; one that would be brought in at another time stays.
func TestWaitsAtThePeak(t *testing.T) {
	for _, other := range []int64{0, 1 << 22} {
		p := &Problem{Loss: ortmodel.None}
		value := func(name string, bytes int64, class int, kind ortmodel.Kind) int {
			p.Values = append(p.Values, ValueInfo{Name: name, Role: Activation})
			p.Graph.Values = append(p.Graph.Values, ortmodel.Value{Bytes: bytes, Class: class, Kind: kind})
			return len(p.Values) - 1
		}
		op := func(name string, out int, in ...int) {
			p.Ops = append(p.Ops, Op{Name: name, Type: "Op", FLOPs: 1, Forward: true})
			p.Graph.Nodes = append(p.Graph.Nodes, ortmodel.Node{Inputs: in, Outputs: []int{out}, InPlace: []ortmodel.Pair{{}}})
		}
		x := value("x", 4, 0, ortmodel.Feed)
		large := value("large", other, 1, ortmodel.Inner)
		a, b := value("a", 1<<20, 2, ortmodel.Inner), value("b", 1<<20, 2, ortmodel.Inner)
		c, d := value("c", 1<<20, 2, ortmodel.Inner), value("d", 1<<20, 2, ortmodel.Inner)
		end := value("end", 4, 0, ortmodel.Output)
		op("a", a, x)
		op("b", b, x) // d asks for it behind c
		op("c", c, a)
		op("d", d, c, b)
		op("large", large, d)
		op("end", end, large)
		setting := standard
		setting.legalizeRounds, setting.legalizeSingles = 0, 0
		p.tuned = &setting
		s, err := p.count(&Plan{Strategy: "none", Schedule: []int{0, 1, 2, 3, 4, 5}})
		if err != nil {
			t.Fatal(err)
		}
		next := p.legalized(s)
		if want := min(other, 1); len(s.early) != 1 || int64(len(next.early)) != want || next.peak != s.peak {
			t.Errorf("%d bytes elsewhere: %d early nodes, then %d, want %d; %d bytes, then %d", other, len(s.early), len(next.early), want, s.peak, next.peak)
		}
	}
}
