package planner

import (
	"fmt"
	"math"
	"path"
	"sort"

	"github.com/onnx-remat/remat/ortmodel"
)

// Plans by segments: keep the boundaries, compute everything between them
// again when backward comes to it.
//
//	layers     0   1   2   3   4   5   6   7   8
//	every=1    |   |   |   |   |   |   |   |   |
//	sqrt       |           |           |       |     ⌈√9⌉ = 3 segments
//
// T. Chen, B. Xu, C. Zhang, C. Guestrin, "Training deep nets with sublinear
// memory cost", 2016. What follows the last boundary (the head and the loss)
// is kept: backward starts there.
//
// Weakness: what lies inside one segment is there all at once during its
// backward. With layers whose insides outweigh their boundaries, as in every
// transformer, √L segments need more than L; the plan says so.

// segmentKeep returns the keep set of a list of boundaries in forward order.
func (ix *index) segmentKeep(boundaries []int) []bool {
	keep := make([]bool, len(ix.root))
	if len(boundaries) == 0 {
		return ix.keepAll()
	}
	for _, op := range ix.after(boundaries[len(boundaries)-1]) {
		for _, v := range ix.outs[op] {
			keep[ix.root[v]] = true
		}
	}
	for _, v := range boundaries {
		if v != ortmodel.None {
			keep[ix.root[v]] = true
		}
	}
	return keep
}

// after returns the forward ops that depend on value v.
func (ix *index) after(v int) []int {
	reached := make([]bool, len(ix.root))
	reached[v] = true
	var list []int
	for _, op := range ix.topo {
		if !ix.p.Ops[op].Forward {
			continue
		}
		for _, u := range ix.reads[op] {
			if reached[u] {
				list = append(list, op)
				for _, o := range ix.outs[op] {
					reached[o] = true
				}
				break
			}
		}
	}
	return list
}

// segmentPlan makes the plan that keeps the given boundaries.
func segmentPlan(p *Problem, strategy string, boundaries []int) *Plan {
	if len(boundaries) > 0 && boundaries[0] == ortmodel.None {
		boundaries = boundaries[1:]
	}
	ix := p.indexed()
	keep := ix.segmentKeep(boundaries)
	ix.polish(keep, boundaries, false)
	plan := ix.planOf(strategy, keep, false)
	for _, v := range boundaries {
		if ix.kept(keep, v) {
			plan.Boundaries = append(plan.Boundaries, v)
		}
	}
	return plan
}

// polishShare is the work, as a share of the plain step's, that one value may
// cost in polish to lower the peak; polishTries bounds the sets tried.
const (
	polishShare = 0.002
	polishTries = 48
)

// polish reconsiders the values before the first boundary (and that one), of
// the last layer and of the head, the largest first, those of one kind (the
// slices of a loss) together: what is cheaper to keep is kept, what lowers the
// peak at hardly any work is dropped.
func (ix *index) polish(keep []bool, boundaries []int, conceal bool) {
	if len(boundaries) > 0 && boundaries[0] == ortmodel.None {
		boundaries = boundaries[1:]
	}
	if len(boundaries) == 0 {
		return
	}
	e := newExplorer(ix, ix.plainOrder(), 0)
	e.sim.conceal = conceal
	peak, work, _ := e.visit(keep)
	inner := make([]bool, len(ix.root))
	for _, op := range ix.after(boundaries[0]) {
		for _, v := range ix.outs[op] {
			inner[v] = true
		}
	}
	for _, op := range ix.after(boundaries[max(len(boundaries)-2, 0)]) {
		for _, v := range ix.outs[op] {
			inner[v] = false
		}
	}
	for _, v := range boundaries[1:] {
		inner[ix.root[v]] = true // a boundary stays
	}
	flip := func(group []int) {
		for _, r := range group {
			keep[r] = !keep[r]
		}
	}
	for _, group := range ix.outerGroups(inner, keep) {
		flip(group)
		p, w, _ := e.visit(keep)
		if p <= peak && w < work || p < peak && float64(w-work) <= polishShare*float64(ix.total) {
			peak, work = p, w
		} else {
			flip(group)
		}
	}
}

// outerGroups lists the droppable roots that are not inner, those of a kind
// and of one state together, the largest polishTries groups.
func (ix *index) outerGroups(inner, keep []bool) [][]int {
	var groups [][]int
	for _, kind := range ix.kinds() {
		var in, out []int
		for _, r := range kind {
			switch {
			case inner[r]:
			case keep[r]:
				in = append(in, r)
			default:
				out = append(out, r)
			}
		}
		for _, g := range [][]int{in, out} {
			if len(g) > 0 {
				groups = append(groups, g)
			}
		}
	}
	bytes := func(g []int) int64 { return int64(len(g)) * ix.p.Graph.Values[g[0]].Bytes }
	sort.SliceStable(groups, func(a, b int) bool { return bytes(groups[a]) > bytes(groups[b]) })
	return groups[:min(len(groups), polishTries)]
}

// planOf makes the plan that keeps a set of roots.
func (ix *index) planOf(strategy string, keep []bool, conceal bool) *Plan {
	base := ix.plainOrder()
	return ix.p.settle(&Plan{Strategy: strategy, Schedule: newLowerer(ix, base).schedule(keep), Anchors: ix.anchors, Conceal: conceal})
}

// every picks each k-th of the layers' boundaries, and always the last.
func every(layers []int, k int) []int {
	var list []int
	for i := 0; i < len(layers)-1; i += k {
		list = append(list, layers[i])
	}
	return append(list, layers[len(layers)-1])
}

// evenly picks the starts of n segments of nearly equal length, and the end.
func evenly(layers []int, n int) []int {
	count := len(layers) - 1
	n = min(n, count)
	var list []int
	for i := range n {
		list = append(list, layers[(i*count+n-1)/n])
	}
	return append(list, layers[count])
}

// layersOf returns the boundaries to choose from: the layers found, else the
// cuts.
func layersOf(p *Problem) ([]int, error) {
	switch {
	case len(p.Layers) >= 2:
		return p.Layers, nil
	case len(p.Cuts) >= 2:
		return p.Cuts, nil
	}
	return nil, fmt.Errorf("no layers found: the forward part has no single-value cuts; use layers=GLOB, selective or optimal")
}

// solveNone takes the best order found, unless the graph's own is better.
func solveNone(p *Problem, o Options) (*Plan, error) {
	ix := p.indexed()
	order := ix.plainOrder()
	best := p.settle(&Plan{Strategy: o.name("none"), Schedule: append([]int(nil), order...), Anchors: ix.anchors})
	given := p.settle(&Plan{Strategy: o.name("none"), Schedule: append([]int(nil), ix.topo...)})
	b, err := Judge(p, best)
	if err != nil {
		return nil, err
	}
	if g, err := Judge(p, given); err == nil && g.Peak < b.Peak {
		return given, nil
	}
	return best, nil
}

func solveFull(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	return segmentPlan(p, o.name("full"), layers), nil
}

func solveEvery(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	k, err := o.count("every")
	if err != nil {
		return nil, err
	}
	return segmentPlan(p, o.name("every"), every(layers, k)), nil
}

// solveSegments cuts the layers into k segments, the last of which is kept
// whole, as PyTorch's checkpoint_sequential does.
func solveSegments(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	k, err := o.count("segments")
	if err != nil {
		return nil, err
	}
	bounds := evenly(layers, k)
	return segmentPlan(p, o.name("segments"), bounds[:len(bounds)-1]), nil
}

func solveSqrt(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	count := len(layers) - 1
	n := int(math.Ceil(math.Sqrt(float64(count))))
	plan := segmentPlan(p, o.name("sqrt"), evenly(layers, n))
	full := segmentPlan(p, "full", layers)
	sim := newLiveSim(p.indexed(), true)
	if a, b := sim.run(plan.Schedule), sim.run(full.Schedule); b < a {
		plan.Notes = append(plan.Notes, fmt.Sprintf(
			"one boundary per layer (--strategy full) would reach %d bytes instead of %d at the same extra forward: here the inside of a layer outweighs its boundary", b, a))
	}
	return plan, nil
}

// solveLayers keeps the forward values whose name, or whose operator's name,
// matches the glob.
func solveLayers(p *Problem, o Options) (*Plan, error) {
	if _, err := path.Match(o.Argument, ""); err != nil || o.Argument == "" {
		return nil, fmt.Errorf("layers=%s: not a pattern", o.Argument)
	}
	ix := p.indexed()
	var list []int
	for _, op := range ix.topo {
		if !p.Ops[op].Forward {
			continue
		}
		for _, v := range ix.outs[op] {
			if ix.pinned[ix.root[v]] && p.Graph.Values[v].Kind == ortmodel.Inner {
				continue
			}
			if match(o.Argument, p.Values[v].Name) || match(o.Argument, p.Ops[op].Name) {
				list = append(list, v)
			}
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("layers=%s: matches no forward value or operator", o.Argument)
	}
	return segmentPlan(p, o.name("layers"), list), nil
}

// match is path.Match in which a star also spans slashes.
func match(pattern, name string) bool {
	if ok, _ := path.Match(pattern, name); ok {
		return true
	}
	flat := func(s string) string {
		b := []byte(s)
		for i := range b {
			if b[i] == '/' {
				b[i] = '.'
			}
		}
		return string(b)
	}
	ok, _ := path.Match(flat(pattern), flat(name))
	return ok
}

// TheorySaving returns 1 − 1/√L, the textbook's saving of activations for L
// layers, 0 for none.
func TheorySaving(layers int) float64 {
	if layers < 1 {
		return 0
	}
	return 1 - 1/math.Sqrt(float64(layers))
}
