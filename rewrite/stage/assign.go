// Package stage cuts a training graph into the forward and backward graphs of pipeline
// stages (Huang et al. 2019, "GPipe", arXiv 1811.06965; Narayanan et al. 2019,
// "PipeDream", arXiv 1806.03377).
//
//	group      0    …   K-1  │  K     …   2K-1
//	           F0 ─▶ … ─▶ FK-1 ─▶ BK-1 ─▶ … ─▶ B0
//	           stage 0  stage K-1  stage K-1  stage 0
//
// Every node gets a group that is no less than those of the nodes it depends on, so the
// groups, run one after the other, are the whole graph. What a group reads of an earlier
// one becomes its input: from the same stage it is stashed, from another one it is sent.
//
//   - balance.go cuts the forward nodes, in the order in which they run, where little
//     crosses and the fullest stage has least.
//   - A backward node goes to the highest stage, among those that the gradients it reads
//     have reached, where all forward values that it reads are at hand: made there, or
//     received by its forward graph. What only one weight's gradient or update comes from
//     goes where that weight is.
//   - What runs again does so where it ran first; other stages read what that made, as if
//     nothing ran again (again.go).
//   - Nodes that depend on no weight, as masks and positions, are in every group that
//     reads them. They cost little, and nothing is sent for them.
//
// Weakness: a value that several stages read is sent from its maker to each. The gradient
// of a weight that two stages share is sent for every micro-batch.
package stage

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
)

// MostStages bounds how many stages there are: sets of them are bits of a word.
const MostStages = 64

// A Balance says what the fullest stage is to have least of.
type Balance string

// The balances.
const (
	Memory Balance = "memory"
	Time   Balance = "time"
)

// Options say how a graph is cut.
type Options struct {
	Stages  int
	Balance Balance
	// Joined: the last stage's forward and backward graphs are one, in the place of the
	// former, for who runs them one after the other.
	Joined bool
}

// replicated marks a node that is in every group that reads it.
const replicated = -1

// An assignment gives each node a group.
type assignment struct {
	*analysis.Analysis
	o     Options
	place map[*onnx.Node]int
	group map[*onnx.Node]int
	// weighty are nodes that depend on a weight, fed those that depend on data.
	weighty, fed map[*onnx.Node]bool
	forward      map[*onnx.Node]bool
	// hand are the stages where a forward value or a weight is at hand, as bits.
	hand map[*onnx.Value]uint64
	// first is what ran first of what a node made that runs a forward one again.
	first map[*onnx.Value]*onnx.Value
}

// assign gives each node of an analyzed training graph its group.
func assign(a *analysis.Analysis, o Options) (*assignment, error) {
	s := &assignment{Analysis: a, o: o, place: map[*onnx.Node]int{}, group: map[*onnx.Node]int{}, weighty: map[*onnx.Node]bool{}, fed: map[*onnx.Node]bool{}, forward: map[*onnx.Node]bool{}, hand: map[*onnx.Value]uint64{}, first: map[*onnx.Value]*onnx.Value{}}
	switch {
	case o.Stages < 2 || o.Stages > MostStages:
		return nil, fmt.Errorf("%d stages: want 2 to %d", o.Stages, MostStages)
	case !a.Roles.Training():
		return nil, errors.New("the graph has no gradients: derive the training graph first, with remat grad")
	case a.Problem.Loss == ortmodel.None:
		return nil, errors.New("no output is known to be the loss: name it with --roles")
	}
	for i, n := range a.Nodes {
		s.place[n] = i
		s.forward[n] = a.Problem.Ops[i].Forward
	}
	s.findWeighty()
	if err := s.cutForward(); err != nil {
		return nil, err
	}
	s.findHand()
	s.findFirst()
	s.assignBackward()
	s.assignAgain()
	for n, group := range s.group {
		if o.Joined && group == o.Stages {
			s.group[n] = o.Stages - 1
		}
	}
	return s, s.check()
}

// smallBytes is the size up to which a constant is a setting rather than a weight.
const smallBytes = 1 << 10

// weight reports a given value that stages are not all to have: what a step updates,
// or returns a gradient of, and tensors of floats beyond a few.
func (s *assignment) weight(v *onnx.Value) bool {
	switch role := s.Problem.Values[s.Index[v]].Role; {
	case s.trains(v):
		return true
	case v.IsInput():
		return role == planner.Parameter || role == planner.State
	}
	return heavy(v)
}

// trains reports a given value that a step updates, or returns a gradient of.
func (s *assignment) trains(v *onnx.Value) bool {
	return s.Roles.New[v.Name] != "" || s.Roles.Grad[v.Name] != ""
}

func heavy(v *onnx.Value) bool {
	return v.Type.DType.IsFloat() && v.Type.KnownBytes() > smallBytes
}

// findWeighty follows weights and data through the graph. What draws random numbers or
// multiplies matrices counts as if it read both: it is to run once.
func (s *assignment) findWeighty() {
	for _, n := range s.Nodes {
		if traits.IsRandom(n) || traits.IsMatrixProduct(n) {
			s.weighty[n], s.fed[n] = true, true
		}
		if n.Is("Constant") && n.Out(0) != nil && heavy(n.Out(0)) {
			s.weighty[n] = true
		}
		s.eachRead(n, func(v *onnx.Value) {
			switch {
			case v.Producer != nil:
				s.weighty[n] = s.weighty[n] || s.weighty[v.Producer]
				s.fed[n] = s.fed[n] || s.fed[v.Producer]
			case s.weight(v):
				s.weighty[n] = true
			case v.IsInput():
				s.fed[n] = true
			}
		})
		if !s.weighty[n] {
			s.group[n] = replicated
		}
	}
}

func (s *assignment) eachRead(n *onnx.Node, f func(*onnx.Value)) {
	for _, list := range [][]*onnx.Value{n.Inputs, n.Captures} {
		for _, v := range list {
			if v != nil {
				f(v)
			}
		}
	}
}

// sink gives nodes, which nothing else places, the first group of what reads them.
func (s *assignment) sink(wanted func(*onnx.Node) bool, last int) {
	for i := len(s.Nodes) - 1; i >= 0; i-- {
		n := s.Nodes[i]
		if !wanted(n) {
			continue
		}
		first := last
		for _, v := range n.Returns() {
			for _, u := range v.Uses() {
				if g, ok := s.group[u.Node]; ok && g != replicated {
					first = min(first, g)
				}
			}
		}
		s.group[n] = first
	}
}

// findHand says in which stages forward values and weights are at hand. Constants of a few bytes, as
// the extents of a Reshape, are wherever they are read.
func (s *assignment) findHand() {
	for _, n := range s.Nodes {
		if !s.forward[n] || s.group[n] == replicated {
			continue
		}
		at := uint64(1) << s.group[n]
		s.eachRead(n, func(v *onnx.Value) {
			if !v.IsConstant() || s.weight(v) {
				s.hand[v] |= at
			}
		})
		for _, v := range n.Returns() {
			s.hand[v] |= at
		}
	}
}

// assignBackward places what is not forward, in the order in which it runs.
func (s *assignment) assignBackward() {
	k := s.o.Stages
	every := uint64(1)<<k - 1
	if k == MostStages {
		every = ^uint64(0)
	}
	weightOf := s.weightsOfUpdates()
	afloat := map[*onnx.Node]bool{} // depends on no gradient, and is placed last
	for _, n := range s.Nodes {
		if s.forward[n] || s.group[n] == replicated || s.runsAgain(n) {
			continue
		}
		first, at, fromForward, gradient := k, every, false, false
		if w := weightOf[n]; w != nil && s.hand[w] != 0 {
			at = s.hand[w]
		}
		var largest *onnx.Value
		s.eachRead(n, func(v *onnx.Value) {
			v = s.origin(v)
			of := v.Producer
			switch {
			case of != nil && !s.forward[of] && s.group[of] != replicated && !afloat[of]:
				first, gradient = max(first, s.group[of]), true
			case s.hand[v] != 0:
				fromForward = fromForward || of != nil
				at &= s.hand[v]
				if largest == nil || v.Type.KnownBytes() > largest.Type.KnownBytes() {
					largest = v
				}
			}
		})
		if !gradient && (n.MadeBy(onnx.RecomputePass) || !fromForward) {
			afloat[n] = true
			for _, v := range n.Returns() {
				if at != every {
					s.hand[v] = at
				}
			}
			continue
		}
		if w := weightOf[n]; at == 0 && w != nil {
			at = s.hand[w]
		} else if at == 0 {
			at = s.hand[largest]
		}
		stage := 2*k - 1 - first
		if below := at & (uint64(1)<<stage<<1 - 1); below != 0 {
			stage = bits.Len64(below) - 1
		}
		s.group[n] = 2*k - 1 - stage
	}
	s.sink(func(n *onnx.Node) bool { return afloat[n] }, 2*k-1)
}

// weightsOfUpdates finds, for each node that leads to the gradient or the next value of one
// weight and to nothing else but state, that weight.
func (s *assignment) weightsOfUpdates() map[*onnx.Node]*onnx.Value {
	given := map[string]*onnx.Value{}
	for _, v := range s.Values {
		if v.Producer == nil && s.hand[v] != 0 {
			given[v.Name] = v
		}
	}
	ends := map[string]*onnx.Value{} // outputs, by name; nil for those of state
	for _, roles := range []map[string]string{s.Roles.New, s.Roles.Grad} {
		for in, out := range roles {
			if w := given[in]; w != nil || ends[out] == nil {
				ends[out] = w
			}
		}
	}
	of := map[*onnx.Node]*onnx.Value{}
	several := map[*onnx.Node]bool{}
	for _, n := range slices.Backward(s.Nodes) {
		if s.forward[n] {
			continue
		}
		note := func(w *onnx.Value, apart bool) {
			if apart || w != nil && of[n] != nil && of[n] != w {
				several[n] = true
			}
			if w != nil {
				of[n] = w
			}
		}
		for _, v := range n.Returns() {
			if v.IsOutput() {
				w, ok := ends[v.Name]
				note(w, !ok)
			}
			for _, u := range v.Uses() {
				note(of[u.Node], several[u.Node])
			}
		}
	}
	for n := range several {
		delete(of, n)
	}
	return of
}

// check holds the groups to the order, and what is updated to the stages that have it.
func (s *assignment) check() error {
	for _, n := range s.Nodes {
		g, ok := s.group[n]
		if !ok {
			return fmt.Errorf("node %s is in no stage", n.Label())
		}
		var err error
		s.eachRead(n, func(v *onnx.Value) {
			if v = s.readIn(g, v); v.Producer != nil && g != replicated && s.group[v.Producer] > g {
				err = fmt.Errorf("node %s of group %d needs %q of group %d", n.Label(), g, v.Name, s.group[v.Producer])
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
