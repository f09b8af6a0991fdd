package planner

import (
	"sort"

	"github.com/onnx-remat/remat/ortmodel"
)

// A Reason says why a plan keeps a value.
type Reason struct {
	Value int
	Name  string
	Bytes int64
	// Boundary: it separates segments.
	Boundary bool
	// MustStay: it cannot be dropped, and Why says so.
	MustStay bool
	Why      string
	// SavedFLOPs is the work that dropping it alone would add, and Freed what
	// that would take off the peak, in bytes; negative: it would raise it.
	SavedFLOPs, Freed int64
	// Readers are the backward operators (and recomputations) that read it.
	Readers []string
}

// Explain says for each kept value why it is kept, largest first. Values that
// share a buffer are one.
func Explain(p *Problem, pl *Plan) ([]Reason, error) {
	if err := pl.Check(p); err != nil {
		return nil, err
	}
	ix := p.indexed()
	keep := make([]bool, len(ix.root))
	kept := pl.Kept(p)
	for _, v := range kept {
		keep[ix.root[v]] = true
	}
	e := newExplorer(ix, ix.plain(), 0)
	e.sim.eraseShapes = pl.EraseShapes
	peak, work, _ := e.visit(keep)
	boundary := make(map[int]bool)
	for _, v := range pl.Boundaries {
		if v != ortmodel.None {
			boundary[ix.root[v]] = true
		}
	}
	var list []Reason
	done := make(map[int]bool)
	for _, v := range kept {
		root := ix.root[v]
		if done[root] || ix.producer[root] == ortmodel.None {
			continue
		}
		done[root] = true
		r := Reason{Value: root, Name: p.Values[root].Name, Bytes: p.Graph.Values[root].Bytes, Boundary: boundary[root], Readers: ix.backwardReaders(root)}
		if ix.pinned[root] {
			r.MustStay, r.Why = true, ix.whyPinned(root)
		} else {
			keep[root] = false
			without, more, _ := e.visit(keep)
			keep[root] = true
			r.SavedFLOPs, r.Freed = more-work, peak-without
		}
		list = append(list, r)
	}
	sort.SliceStable(list, func(a, b int) bool { return list[a].Bytes > list[b].Bytes })
	return list, nil
}

func (ix *index) backwardReaders(root int) []string {
	var names []string
	for v, r := range ix.root {
		if r != root {
			continue
		}
		for _, op := range ix.readers[v] {
			if !ix.p.Ops[op].Forward {
				names = append(names, ix.p.Ops[op].Name)
			}
		}
	}
	return names
}

// whyPinned says why a root is never dropped.
func (ix *index) whyPinned(r int) string {
	val := &ix.p.Graph.Values[r]
	op := ix.producer[r]
	switch {
	case val.Kind == ortmodel.Output || val.Kind == ortmodel.Bound:
		return "it is an output"
	case op == ortmodel.None || val.Kind != ortmodel.Inner:
		return "it is fed"
	case ix.p.Values[r].Role == Index:
		return "it is an index or a shape"
	case !ix.canRepeat(op):
		if why := ix.p.why(op); why != "" {
			return why
		}
		return "a subgraph reads it"
	}
	return "it, or a view of it, is too small to matter or cannot be had again"
}
