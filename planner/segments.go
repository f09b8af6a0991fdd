package planner

import (
	"errors"
	"fmt"
	"math"
	"path"
	"sort"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
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

// segmentKeep returns the keep set of a list of boundaries in forward order:
// they, what follows the last, and what lives beside boundaries anyway.
func (ix *index) segmentKeep(boundaries []Cut) []bool {
	if len(boundaries) == 0 {
		return ix.keepAll()
	}
	keep := ix.boundaryKeep(boundaries)
	for _, v := range ix.p.Beside {
		keep[ix.root[v]] = true
	}
	return keep
}

// boundaryKeep keeps some values and what follows the last.
func (ix *index) boundaryKeep(boundaries []Cut) []bool {
	keep := make([]bool, len(ix.root))
	for _, op := range ix.after(boundaries[len(boundaries)-1]) {
		for _, v := range ix.outs[op] {
			keep[ix.root[v]] = true
		}
	}
	for _, cut := range boundaries {
		for _, v := range cut {
			keep[ix.root[v]] = true
		}
	}
	return keep
}

// after returns the forward ops that depend on a cut's values.
func (ix *index) after(cut Cut) []int {
	reached := make([]bool, len(ix.root))
	for _, v := range cut {
		reached[v] = true
	}
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

// segmentPlan makes the plan that keeps the given boundaries. What depends on
// the cut tail belongs to the last segment. Where backward views what is dropped, keeping
// that may hold less.
func segmentPlan(p *Problem, strategy string, boundaries []Cut, tail Cut) *Plan {
	boundaries = computed(boundaries)
	ix := p.indexed()
	plan := ix.polished(strategy, ix.segmentKeep(boundaries), boundaries, tail)
	if !ix.viewed {
		return plan
	}
	narrow := ix.narrowed()
	other := narrow.polished(strategy, narrow.segmentKeep(boundaries), boundaries, tail)
	a, err := Judge(p, plan)
	b, errOther := Judge(p, other)
	if errOther == nil && (err != nil || b.Peak < a.Peak || b.Peak == a.Peak && b.RecomputeFLOPs < a.RecomputeFLOPs) {
		return other
	}
	return plan
}

// computed leaves out the step's inputs as a first boundary.
func computed(boundaries []Cut) []Cut {
	if len(boundaries) > 0 && len(boundaries[0]) == 0 {
		return boundaries[1:]
	}
	return boundaries
}

// polished makes the plan of a keep set and its boundaries, once polished.
func (ix *index) polished(strategy string, keep []bool, boundaries []Cut, tail Cut) *Plan {
	if ix.tune.runs(stagePolish) {
		newExplorer(ix, ix.plain(), 0).polish(keep, boundaries, tail, false)
	}
	plan := ix.planOf(strategy, keep, false)
	for _, cut := range boundaries {
		for _, v := range cut {
			if ix.kept(keep, v) {
				plan.Boundaries = append(plan.Boundaries, v)
			}
		}
	}
	ix.remark(plan)
	return plan
}

// polish reconsiders the values of the first segment, of the last and of the
// head, and those beside boundaries, the largest first, those of one kind (the
// slices of a loss) together. What is cheaper to keep is kept: in the last
// segment and the head, where backward begins, if the peak does not rise; in
// the first, which waits longest, only if what forward leaves behind does not
// rise either. What lowers the peak at hardly any work is dropped, or kept,
// anywhere but at boundaries. With peakOnly nothing but the peak counts, and
// values within segments stay as they are.
func (e *explorer) polish(keep []bool, boundaries []Cut, tail Cut, peakOnly bool) {
	ix := e.ix
	if boundaries = computed(boundaries); len(boundaries) == 0 {
		return
	}
	eraseShapes := e.sim.eraseShapes
	e = newExplorer(ix, e.base, 0) // what it visits is no seed
	e.sim.eraseShapes = eraseShapes
	peak, work, _ := e.visit(keep)
	behind := func() int64 { // which nothing asks for the peak alone
		if peakOnly {
			return 0
		}
		return e.sim.leftBehind(e.low.out)
	}
	left := behind()
	inner, last, fixed := ix.parts(boundaries, tail)
	flip := func(group []int) {
		for _, r := range group {
			keep[r] = !keep[r]
		}
	}
	groups := ix.groups(keep, func(r int) bool { return !inner[r] }, last)
	if !peakOnly {
		groups = append(groups, ix.groups(keep, func(r int) bool { return inner[r] && !fixed[r] }, last)...)
	}
	for _, group := range groups {
		flip(group)
		schedule := e.low.schedule(keep)
		p, w := e.sim.below(schedule, peak+1), e.low.work // a higher one is of no use
		if p > peak {
			flip(group)
			continue
		}
		l := behind()
		cheaper := p <= peak && w < work && !inner[group[0]] && (last[group[0]] || peakOnly || l <= left)
		enough := int64(1) // bytes that the peak must fall by
		if inner[group[0]] {
			enough += part(ix.tune.polishGain, peak)
		}
		if cheaper || p+enough <= peak && float64(w-work) <= ix.tune.polishWork*float64(ix.total) {
			peak, work, left = p, w, l
		} else {
			flip(group)
		}
	}
}

// parts marks the roots between the first boundary and the last segment, and
// those of the last segment and the head. What lives beside boundaries counts
// as neither; boundaries but the first are fixed.
func (ix *index) parts(boundaries []Cut, tail Cut) (inner, last, fixed []bool) {
	inner, last, fixed = make([]bool, len(ix.root)), make([]bool, len(ix.root)), make([]bool, len(ix.root))
	for _, op := range ix.after(boundaries[0]) {
		for _, v := range ix.outs[op] {
			inner[ix.root[v]] = true
		}
	}
	for _, op := range ix.after(tail) {
		for _, v := range ix.outs[op] {
			inner[ix.root[v]], last[ix.root[v]] = false, true
		}
	}
	for _, v := range ix.p.Beside {
		inner[ix.root[v]] = false
	}
	for _, cut := range boundaries[1:] {
		for _, v := range cut {
			inner[ix.root[v]], fixed[ix.root[v]] = true, true
		}
	}
	return inner, last, fixed
}

// groups lists the droppable roots that are in, those of a kind, of one end and
// of one state together, the largest polishTries groups.
func (ix *index) groups(keep []bool, in func(r int) bool, last []bool) [][]int {
	var groups [][]int
	for _, kind := range ix.kinds() {
		var list [4][]int
		for _, r := range kind {
			k := 0
			if keep[r] {
				k = 1
			}
			if last[r] {
				k += 2
			}
			if in(r) {
				list[k] = append(list[k], r)
			}
		}
		for _, k := range []int{3, 1, 2, 0} { // what is kept first
			if len(list[k]) > 0 {
				groups = append(groups, list[k])
			}
		}
	}
	bytes := func(g []int) int64 { return int64(len(g)) * ix.p.Graph.Values[g[0]].Bytes }
	sort.SliceStable(groups, func(a, b int) bool { return bytes(groups[a]) > bytes(groups[b]) })
	return groups[:min(len(groups), ix.tune.polishTries)]
}

// planOf makes the plan that keeps a set of roots.
func (ix *index) planOf(strategy string, keep []bool, eraseShapes bool) *Plan {
	return ix.p.settle(ix.built(strategy, keep, eraseShapes))
}

// built is planOf in the order that it begins with.
func (ix *index) built(strategy string, keep []bool, eraseShapes bool) *Plan {
	base := ix.plain()
	return &Plan{Strategy: strategy, Schedule: newLowerer(ix, base.order).schedule(keep), ControlEdges: base.controlEdges, EraseShapes: eraseShapes}
}

// every picks each k-th of the layers' boundaries, and always the last.
func every(layers []Cut, k int) []Cut {
	var list []Cut
	for i := 0; i < len(layers)-1; i += k {
		list = append(list, layers[i])
	}
	return append(list, layers[len(layers)-1])
}

// evenly picks the starts of n segments of nearly equal length, and the end.
func evenly(layers []Cut, n int) []Cut {
	count := len(layers) - 1
	n = min(n, count)
	var list []Cut
	for i := range n {
		list = append(list, layers[(i*count+n-1)/n])
	}
	return append(list, layers[count])
}

func areSegments(n int) string {
	if n == 1 {
		return "is 1 segment"
	}
	return fmt.Sprintf("are %d segments", n)
}

// tailOf returns the boundary at which the last segment of several begins.
func tailOf(boundaries []Cut) Cut {
	if tail := boundaries[max(len(boundaries)-2, 0)]; len(tail) > 0 {
		return tail
	}
	return boundaries[len(boundaries)-1]
}

// layersOf returns the boundaries to choose from: the layers found, else the
// cuts.
func layersOf(p *Problem) ([]Cut, error) {
	switch {
	case len(p.Layers) >= 2:
		return p.Layers, nil
	case len(p.Cuts) >= 2:
		return p.Cuts, nil
	}
	return nil, ErrNoLayers
}

func solveFull(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	return segmentPlan(p, o.strategy(), layers, tailOf(layers)), nil
}

func solveEvery(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	k, err := o.count()
	if err != nil {
		return nil, err
	}
	bounds := every(layers, k)
	plan := segmentPlan(p, o.strategy(), bounds, tailOf(bounds))
	if count := len(layers) - 1; k > count {
		plan.Notes = append(plan.Notes, fmt.Sprintf("every=%d: forward has %s, so there %s", k, units.Counted(count, "layer"), areSegments(1)))
	}
	return plan, nil
}

// solveSegments cuts the layers into k segments, the last of which is kept
// whole, as PyTorch's checkpoint_sequential does.
func solveSegments(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	k, err := o.count()
	if err != nil {
		return nil, err
	}
	bounds := evenly(layers, k)
	plan := segmentPlan(p, o.strategy(), bounds[:len(bounds)-1], tailOf(bounds))
	if count := len(layers) - 1; k > count {
		plan.Notes = append(plan.Notes, fmt.Sprintf("segments=%d: forward has %s, so there %s", k, units.Counted(count, "layer"), areSegments(count)))
	}
	return plan, nil
}

func solveSqrt(p *Problem, o Options) (*Plan, error) {
	layers, err := layersOf(p)
	if err != nil {
		return nil, err
	}
	count := len(layers) - 1
	n := int(math.Ceil(math.Sqrt(float64(count))))
	bounds := evenly(layers, n)
	plan := segmentPlan(p, o.strategy(), bounds, tailOf(bounds))
	full := segmentPlan(p, "full", layers, tailOf(layers))
	sim := newLiveSim(p.indexed())
	if a, b := sim.run(plan.Schedule), sim.run(full.Schedule); b < a {
		size := units.Distinct(b, a)
		plan.Notes = append(plan.Notes, fmt.Sprintf(
			"one boundary per layer (--strategy full) would reach %s instead of %s at the same extra forward: here the inside of a layer outweighs its boundary", size[0], size[1]))
	}
	return plan, nil
}

// solveLayers keeps the forward values whose name, or whose operator's name,
// matches the glob, and those that a layer ends in whose name does.
func solveLayers(p *Problem, o Options) (*Plan, error) {
	if _, err := path.Match(o.Argument, ""); err != nil || o.Argument == "" {
		return nil, fmt.Errorf("layers=%s: not a pattern", o.Argument)
	}
	ix := p.indexed()
	var bounds []Cut
	ends := map[int]bool{}
	for i, name := range p.LayerNames {
		if Match(o.Argument, name) {
			for _, v := range p.Layers[i+1] {
				ends[v] = true
			}
		}
	}
	for _, op := range ix.topo {
		if !p.Ops[op].Forward {
			continue
		}
		for _, v := range ix.outs[op] {
			if ix.pinned[ix.root[v]] && p.Graph.Values[v].Kind == ortmodel.Inner {
				continue
			}
			if ends[v] || Match(o.Argument, p.Values[v].Name) || Match(o.Argument, p.Ops[op].Name) {
				bounds = append(bounds, Cut{v})
			}
		}
	}
	if len(bounds) == 0 {
		return nil, errors.New("it matches no layer, forward value or operator; remat plan lists the layers")
	}
	return ix.polished(o.strategy(), ix.boundaryKeep(bounds), bounds, tailOf(bounds)), nil
}

// Match is path.Match for names of nodes and values, in which a slash is a letter like
// others: a star spans it. A name matches itself, whatever signs it holds.
func Match(pattern, name string) bool {
	flat := func(s string) string { return strings.ReplaceAll(s, "/", "\x01") }
	ok, _ := path.Match(flat(pattern), flat(name))
	return ok || pattern == name
}

// TheorySaving returns 1 − 1/√L, the textbook's saving of activations for L
// layers, 0 for none.
func TheorySaving(layers int) float64 {
	if layers < 1 {
		return 0
	}
	return 1 - 1/math.Sqrt(float64(layers))
}
