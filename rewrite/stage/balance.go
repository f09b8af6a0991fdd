package stage

// Where the forward nodes are cut: of all cuts where little goes across, compared with the
// places around, those whose fullest stage has least, by dynamic programming over the places in the order in which
// nodes run. Of equal ones, those across which least goes.
//
// What a stage has is its work, or its memory: weights with their gradients and state, and
// what it keeps for the backward pass of each micro-batch under way, which in 1F1B are
// fewer the later the stage. A stage that trains nothing is the last resort: nobody would
// wait for it.

import (
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
)

// crossingSlack is how much more than the least may go across a cut; idle is what a stage
// costs besides that trains nothing, more than any that does.
const crossingSlack, idle = 1.5, 1e30

// cutForward gives the forward nodes their stages.
func (s *assignment) cutForward() error {
	var main []*onnx.Node
	for _, n := range s.Nodes {
		if s.forward[n] && s.weighty[n] && s.fed[n] {
			main = append(main, n)
		}
	}
	if len(main) < s.o.Stages {
		return fmt.Errorf("%d stages: the forward pass has %d nodes to divide", s.o.Stages, len(main))
	}
	crossing := crossings(main)
	starts := best(s.o.Stages, candidates(crossing, s.o.Stages), len(main), s.costs(main))
	group := -1
	for i, n := range main {
		if group+1 < len(starts) && i == starts[group+1] {
			group++
		}
		s.group[n] = group
	}
	s.sink(func(n *onnx.Node) bool { return s.forward[n] && s.weighty[n] && !s.fed[n] }, s.o.Stages-1)
	return nil
}

// crossings are the bytes alive before each node, of what the list makes and reads.
func crossings(main []*onnx.Node) []int64 {
	place := map[*onnx.Node]int{}
	for i, n := range main {
		place[n] = i
	}
	change := make([]int64, len(main)+1)
	for i, n := range main {
		for _, v := range n.Returns() {
			last := i
			for _, u := range v.Uses() {
				if at, ok := place[u.Node]; ok {
					last = max(last, at)
				}
			}
			change[i+1] += v.Type.KnownBytes()
			if last+1 <= len(main) {
				change[last+1] -= v.Type.KnownBytes()
			}
		}
	}
	for i := 1; i < len(change); i++ {
		change[i] += change[i-1]
	}
	return change[:len(main)]
}

// candidates are the places at which a stage may begin: those across which not much more
// goes than across the narrowest within a stage's nodes before, or after. A loss ends
// in a scalar, beside which nothing is narrow on both sides.
func candidates(crossing []int64, stages int) []int {
	near := max(1, len(crossing)/stages)
	list := []int{0}
	for i := 1; i < len(crossing); i++ {
		least := max(slices.Min(crossing[max(1, i-near):i+1]), slices.Min(crossing[i:min(len(crossing), i+near+1)]))
		if float64(crossing[i]) <= crossingSlack*float64(least) {
			list = append(list, i)
		}
	}
	if len(list) < stages { // any place
		for i := range crossing[1:] {
			list = append(list, i+1)
		}
		slices.Sort(list)
		list = slices.Compact(list)
	}
	return list
}

// costs returns what stage has of the nodes from one place to another.
func (s *assignment) costs(main []*onnx.Node) func(stage, from, to int) float64 {
	each, kept := make([]float64, len(main)+1), make([]float64, len(main)+1) // running sums
	trained := make([]int, len(main)+1)                                      // weights first read, likewise
	readers := map[*onnx.Value][]int{}                                       // of each weight
	copies := s.copies()
	for i, n := range main {
		trained[i+1] = trained[i]
		for _, v := range s.weightsOf(n, nil) {
			if len(readers[v]) == 0 && s.trains(v) {
				trained[i+1]++
			}
			readers[v] = append(readers[v], i)
		}
		if s.o.Balance == Time {
			op := s.Problem.Ops[s.place[n]]
			each[i+1] = each[i] + float64(op.FLOPs) + float64(op.Moved)
			continue
		}
		stash := float64(0)
		for _, v := range n.Returns() {
			if slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return !s.forward[u.Node] && s.weighty[u.Node] }) {
				stash += float64(v.Type.KnownBytes())
			}
		}
		kept[i+1] = kept[i] + stash
	}
	type held struct {
		by    []int
		bytes float64
	}
	var shared []held // by nodes far apart, which a stage has once
	if s.o.Balance == Memory {
		for v, by := range readers {
			bytes := copies * float64(v.Type.KnownBytes())
			if by[len(by)-1]-by[0] > len(main)/s.o.Stages {
				shared = append(shared, held{by, bytes})
				continue
			}
			each[by[0]+1] += bytes
		}
		for i := range main {
			each[i+1] += each[i]
		}
	}
	return func(stage, from, to int) float64 {
		cost := each[to] - each[from] + float64(s.o.Stages-stage)*(kept[to]-kept[from])
		if trained[to] == trained[from] {
			cost += idle
		}
		for _, h := range shared {
			if at, _ := slices.BinarySearch(h.by, from); at < len(h.by) && h.by[at] < to {
				cost += h.bytes
			}
		}
		return cost
	}
}

// weightsOf adds the weights that a node reads, through what is made of weights alone.
func (s *assignment) weightsOf(n *onnx.Node, list []*onnx.Value) []*onnx.Value {
	s.eachRead(n, func(v *onnx.Value) {
		switch of := v.Producer; {
		case of == nil && s.weight(v):
			list = append(list, v)
		case of != nil && s.weighty[of] && !s.fed[of]:
			list = s.weightsOf(of, list)
		}
	})
	return list
}

// copies is how many times its weights a step holds: themselves, gradients, and state.
func (s *assignment) copies() float64 {
	weights, updated := int64(0), int64(0)
	for _, v := range s.Values {
		if v.Producer != nil || !s.weight(v) {
			continue
		}
		if updated += v.Type.KnownBytes(); s.hasForward(v) {
			weights += v.Type.KnownBytes()
		}
	}
	if weights == 0 {
		return 1
	}
	return 1 + float64(updated)/float64(weights)
}

func (s *assignment) hasForward(v *onnx.Value) bool {
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return s.forward[u.Node] })
}

// best returns where each stage begins.
func best(stages int, at []int, nodes int, cost func(stage, from, to int) float64) []int {
	type state struct {
		cost, squares float64
		from          int // the candidate at which the stage begins that ends here
	}
	n := len(at)
	ends := append(slices.Clone(at), nodes)
	table := make([][]state, stages+1) // [stages so far][candidate at which they end]
	for k := range table {
		table[k] = slices.Repeat([]state{{math.Inf(1), math.Inf(1), -1}}, n+1)
	}
	table[0][0] = state{}
	for k := 1; k <= stages; k++ {
		for end := k; end <= n; end++ {
			for from := k - 1; from < end; from++ {
				before := table[k-1][from]
				if math.IsInf(before.cost, 1) {
					continue
				}
				has := cost(k-1, ends[from], ends[end])
				c := state{max(before.cost, has), before.squares + has*has, from}
				if b := table[k][end]; c.cost < b.cost || c.cost == b.cost && c.squares < b.squares {
					table[k][end] = c
				}
			}
		}
	}
	starts := make([]int, stages)
	for k, end := stages, n; k > 0; k-- {
		end = table[k][end].from
		starts[k-1] = ends[end]
	}
	return starts
}
