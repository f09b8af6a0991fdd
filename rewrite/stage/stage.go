package stage

import (
	"fmt"
	"maps"
	"math/bits"
	"slices"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner/analysis"
)

// A Split is a graph cut into stages.
type Split struct {
	Stages int
	// Groups are the graphs in the order in which they run: the forward graphs of the
	// stages, rising, and their backward graphs, falling. One without a node is nil.
	Groups []*Group
	// Values are what one group makes and others read.
	Values []*Value
	// Owner is the stage that updates an input, or returns its gradient; Readers are the
	// stages that read it.
	Owner   map[string]int
	Readers map[string][]int
}

// Shared reports an input that one stage updates and another one reads, be that its only
// reader: a bias is read in the forward graph, and its gradient may be complete elsewhere.
func (s *Split) Shared(name string) bool {
	owner, ok := s.Owner[name]
	return ok && slices.ContainsFunc(s.Readers[name], func(r int) bool { return r != owner })
}

// A Group is the forward or backward graph of a stage.
type Group struct {
	Stage    int
	Backward bool
	Model    *onnx.Model
	// In and Out are the values of Split.Values that it reads and makes.
	In, Out []*Value
}

// A Value is made by one group and read by later ones.
type Value struct {
	Name string
	onnx.Type
	Bytes int64
	From  int // a group
	To    []int
}

// Of cuts a training graph, whose types are inferred and which was analyzed. The model
// stays as it is.
func Of(m *onnx.Model, a *analysis.Analysis, o Options) (*Split, error) {
	s, err := assign(a, o)
	if err != nil {
		return nil, err
	}
	out := &Split{Stages: o.Stages, Owner: map[string]int{}, Readers: map[string][]int{}}
	if err := s.owners(m.Graph, out); err != nil {
		return nil, err
	}
	if err := s.crossingValues(out); err != nil {
		return nil, err
	}
	for group := range 2 * o.Stages {
		g := &Group{Stage: ranks.StageOf(group, o.Stages), Backward: group >= o.Stages}
		for _, v := range out.Values {
			if v.From == group {
				g.Out = append(g.Out, v)
			}
			if slices.Contains(v.To, group) {
				g.In = append(g.In, v)
			}
		}
		if g.Model, err = s.extract(m, group, g); err != nil {
			return nil, err
		}
		if g.Model == nil {
			g = nil
		}
		out.Groups = append(out.Groups, g)
	}
	return out, nil
}

// owners finds who updates what, and refuses an update where its weight is not read: the
// stages would train apart.
func (s *assignment) owners(g *onnx.Graph, out *Split) error {
	for _, v := range g.Inputs {
		readers := map[int]bool{}
		for _, u := range v.Uses() {
			if group, ok := s.group[u.Node]; ok && group != replicated {
				readers[ranks.StageOf(group, s.o.Stages)] = true
			}
		}
		out.Readers[v.Name] = slices.Sorted(maps.Keys(readers))
		for _, roles := range []map[string]string{s.Roles.New, s.Roles.Grad} {
			next := g.Value(roles[v.Name])
			if next == nil || next.Producer == nil || s.group[next.Producer] == replicated {
				continue
			}
			out.Owner[v.Name] = ranks.StageOf(s.group[next.Producer], s.o.Stages)
		}
		if s.Roles.New[v.Name] == "" {
			continue
		}
		owner, known := out.Owner[v.Name]
		hand := s.hand[v]
		switch {
		case !known:
			return fmt.Errorf("%q: its next value depends on no weight: no stage owns it", v.Name)
		case slices.Contains(s.Roles.Buffers, v.Name):
			if readers := out.Readers[v.Name]; slices.ContainsFunc(readers, func(stage int) bool { return stage != owner }) {
				return fmt.Errorf("%q is a running statistic that is moved in stage %d and read in stages %v: use fewer stages, or leave it as it is (remat grad --frozen)", v.Name, owner, readers)
			}
		case hand != 0 && hand>>owner&1 == 0:
			return fmt.Errorf("%q is read in stage %d, and what its update needs is complete in stage %d only: use fewer stages; where one norm clips all gradients, clip by parameter (remat grad --clip-by parameter)", v.Name, bits.Len64(hand)-1, owner)
		case hand == 0 && len(out.Readers[v.Name]) > 1:
			return fmt.Errorf("%q is state that stages %v read: use fewer stages; where one norm clips all gradients, clip by parameter (remat grad --clip-by parameter)", v.Name, out.Readers[v.Name])
		}
	}
	return nil
}

// crossingValues lists what goes from one group to another.
func (s *assignment) crossingValues(out *Split) error {
	needs := s.needs()
	for _, n := range s.Nodes {
		from := s.group[n]
		if from == replicated {
			continue
		}
		for _, v := range n.Returns() {
			var to []int
			for group := from + 1; group < 2*s.o.Stages; group++ {
				if needs[group][v] {
					to = append(to, group)
				}
			}
			if len(to) == 0 {
				continue
			}
			bytes, ok := v.Type.Bytes()
			if !ok {
				return fmt.Errorf("%q goes from one stage to another and has no size that is known: %s", v.Name, v.Type)
			}
			out.Values = append(out.Values, &Value{v.Name, v.Type, bytes, from, to})
		}
	}
	return nil
}

// needs lists for each group the values that its nodes read, and those that replicated
// nodes read for it.
func (s *assignment) needs() []map[*onnx.Value]bool {
	needs := make([]map[*onnx.Value]bool, 2*s.o.Stages)
	for i := range needs {
		needs[i] = map[*onnx.Value]bool{}
	}
	for _, n := range slices.Backward(s.Nodes) {
		for group := range needs {
			if s.in(n, group, needs) {
				s.eachRead(n, func(v *onnx.Value) { needs[group][s.readIn(group, v)] = true })
			}
		}
	}
	return needs
}

// in reports a node of a group, or a replicated one that something of it reads, or that
// makes an output of the whole graph.
func (s *assignment) in(n *onnx.Node, group int, needs []map[*onnx.Value]bool) bool {
	if s.group[n] != replicated {
		return s.group[n] == group
	}
	return slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool {
		return v != nil && (needs[group][v] || v.IsOutput() && group == s.o.Stages-1)
	})
}

// extract makes the graph of a group, nil where that has no node.
func (s *assignment) extract(m *onnx.Model, group int, of *Group) (*onnx.Model, error) {
	c, err := m.Clone()
	if err != nil {
		return nil, err
	}
	g := c.Graph
	twin := func(v *onnx.Value) *onnx.Value {
		w := g.Value(v.Name)
		w.Type = v.Type
		return w
	}
	g.RemoveOutputs(func(*onnx.Value) bool { return true })
	for v, first := range s.first {
		if s.readIn(group, v) == first {
			g.ReplaceUses(g.Value(v.Name), g.Value(first.Name))
		}
	}
	any := false
	for _, n := range s.Nodes {
		mine := s.group[n] == group || s.group[n] == replicated && group == s.o.Stages-1
		any = any || s.group[n] == group
		for _, v := range n.Returns() {
			w := twin(v)
			if mine && (v.IsOutput() || slices.ContainsFunc(of.Out, func(o *Value) bool { return o.Name == v.Name })) {
				g.AddOutput(w)
			}
		}
	}
	if !any {
		return nil, c.Close()
	}
	type arriving struct {
		*onnx.Value
		name string
	}
	var list []arriving
	for _, v := range of.In {
		w := g.Value(v.Name)
		in := g.AddInput(g.FreshValueName(v.Name+".arriving"), v.Type)
		g.ReplaceUses(w, in)
		list = append(list, arriving{in, v.Name})
	}
	g.RemoveDead()
	for _, v := range slices.Clone(g.Inputs) {
		if v.Dead() {
			g.RemoveInput(v)
		}
	}
	g.RemoveDead() // what was the default of an input
	for _, v := range list {
		g.Rename(v.Value, v.name)
	}
	return c, s.Roles.Within(g).Write(c)
}
