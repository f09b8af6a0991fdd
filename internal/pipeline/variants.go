package pipeline

// The variants of a graph among which a search chooses.
//
//	casts as asked for   ── plain ── loss in slices ── products in parts ── updates by rows … ── micro-batches
//	casts at the other time ── …     where values wait in half
//
// They are prepared in this order, each when it is first looked at: a later one
// changes the graph more.

import (
	"errors"
	"iter"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
)

// A Variant is a graph as it is planned: the given one after the passes of
// passes.go. It is not changed once it is prepared.
type Variant struct {
	Model    *onnx.Model
	Analysis *analysis.Analysis
	// Options are those that it was prepared under.
	Options Options
	Divided Divided
	Reports []rewrite.Report

	// roles are those that were stated, or found before normalization; nil: the
	// analysis finds them.
	roles *step.Roles
	// added is the work that computing in parts adds, in FLOPs, and reread how many
	// bytes it reads again.
	added, reread int64
	// castsOnce is the problem in which casts run only once, nil without casts.
	castsOnce *planner.Problem
}

// Divided says what of a variant is computed in parts.
type Divided struct {
	// Loss is the number of its slices, 0 where it is whole, and Workspace what one of them
	// holds at most, in bytes.
	Loss      int
	Workspace int64
	// Batch is the number of micro-batches, 0 where the step is whole.
	Batch int
	// Products and Updates say how many of them are divided.
	Products, Updates int
}

// Problem is the variant's planning problem.
func (v *Variant) Problem() *planner.Problem { return v.Analysis.Problem }

// Again are the options under which the given graph becomes this variant again:
// what was left to a pass is the number that it came to.
func (v *Variant) Again() Options {
	o := v.Options
	switch {
	case v.Divided.Batch > 0:
		o.Batch = Parts(v.Divided.Batch)
	case o.Batch.Mode == Coarse || o.Batch.Mode == Fine: // none, but the pass has lifted control dependencies all the same
		o.Batch = auto
	}
	switch {
	case v.Divided.Loss > 0:
		o.Chunk = Parts(v.Divided.Loss)
	case o.Chunk.Mode == Coarse || o.Chunk.Mode == Fine:
		o.Chunk = auto
	case o.Chunk.Mode == WithinBytes: // the loss is whole
		o.Chunk = Division{}
	}
	return o
}

// analyze makes the planning problem of a graph of this variant as it stands.
func (v *Variant) analyze(m *onnx.Model) (*analysis.Analysis, error) {
	o := &v.Options
	ao := analysis.Options{Dims: o.Dims, Threads: o.Threads, On: o.provider(), Roles: v.roles, Costs: o.Costs, Outputs: o.Outputs}
	a, err := analysis.Analyze(m, ao)
	if err != nil {
		return nil, err
	}
	if ao.Shapes, err = o.Sizes.of(m, a.Roles, o.Dims); err == nil && len(ao.Shapes) > 0 {
		a, err = analysis.Analyze(m, ao)
	}
	if err != nil {
		return nil, err
	}
	a.Problem.Added = v.added
	a.Problem.Reread = rereadFLOPs(a, v.reread)
	a.Problem.StopWhen(o.Stop)
	return a, nil
}

// problems are the variant's planning problem and, where it has casts, the one in
// which these run once: a search that finds less among more choices is then no
// loss.
func (v *Variant) problems() []*planner.Problem {
	list := []*planner.Problem{v.Problem()}
	if v.castsOnce != nil {
		list = append(list, v.castsOnce)
	}
	return list
}

// choicesN is how many choices there are.
const choicesN = 12

// choices are what a search may divide, unless the user did: nothing, the loss
// into slices, wide products into parts too, the loss into smaller slices, which
// slows its products down, and large updates into slices. Where these are bound one by
// one and wait for nothing, the loss holds most: slices between coarse and fine then hold
// less than either. Within a bound, on work or memory, and for the least, the loss in four is looked at
// too: what coarse slices read again may be better spent elsewhere, and a small loss has none. Micro-batches divide all
// that the batch is an axis of, for what their products read again, and have as many times
// the nodes: coarse ones, and with the loss in slices more of them. Yet more take long to plan and to
// load, so they are for who gives a bound or asks for the least.
var choices = [choicesN]choice{
	{}, {Divisions: Divisions{Chunk: coarse}}, {Divisions: Divisions{Chunk: coarse, Tile: auto}, beyond: 1}, {Divisions: Divisions{Chunk: fine, Tile: auto}, beyond: 2},
	{Divisions: Divisions{Chunk: coarse, Rows: auto}, beyond: 1}, {Divisions: Divisions{Chunk: coarse, Tile: auto, Rows: auto}, beyond: 2},
	{Divisions: Divisions{Chunk: fine, Tile: auto, Rows: auto}, beyond: 3}, {Divisions: Divisions{Chunk: auto, Tile: auto, Rows: auto}, bound: true},
	{Divisions: Divisions{Chunk: Parts(4), Tile: auto}, within: true}, {Divisions: Divisions{Batch: coarse}}, {Divisions: Divisions{Batch: auto, Chunk: coarse}, beyond: 9},
	{Divisions: Divisions{Batch: fine, Chunk: coarse}, far: true, beyond: 10},
}

// A choice is what a search may divide.
type choice struct {
	Divisions
	bound  bool // only with Outputs Rows
	within bool // only within a bound, or for the least
	far    bool // only within a bound, or for the least
	// beyond is a choice that divides less, and adds no more work: the first, where none else does.
	beyond int
}

// batched is the choice of as many micro-batches as are looked at whatever is asked for.
const batched = 10

// reaching is the first choice that holds much less and adds hardly any work.
const reaching = 1

var coarse, fine = Division{Mode: Coarse}, Division{Mode: Fine}

// A family is the variants whose casts run at the same time.
type family struct {
	options Options
	// variants are by choice, nil where one is not prepared, or as another is; the first
	// divides what the options do.
	variants [choicesN]*Variant
	// divided are those that are not prepared yet, but all that they divide is, asked for or as
	// another; adds is the work that dividing adds, as a share of the plain step's.
	divided [choicesN]*preparation
	asked   [choicesN]bool
	adds    [choicesN]float64
	// slicing is the work of computing updates in slices, as a share of the plain step's;
	// nil before it is asked for.
	slicing *float64
	// reordered is the first variant's file that computes nothing again.
	reordered *File
	// far is what reach found; nil: nothing.
	far *Candidate
}

// prepared are the variants that there are so far.
func (f *family) prepared() []*Variant {
	return slices.DeleteFunc(slices.Clone(f.variants[:]), func(v *Variant) bool { return v == nil })
}

// newFamily prepares the first variant.
func (p *Planner) newFamily(o Options) (*family, error) {
	base, err := Prepare(p.engine, p.given, o)
	if err != nil {
		return nil, err
	}
	f := &family{options: o}
	f.variants[0], f.asked[0] = base, true
	f.options.Roles, f.options.Layers = base.roles, base.Options.Layers
	none, err := planner.Solve(base.Problem(), "none")
	if err != nil {
		return nil, err
	}
	if f.reordered, err = p.write(base, none); err != nil {
		return nil, err
	}
	p.fixed = min(p.fixed, fixedBytes(f.reordered.Prediction))
	return f, nil
}

// families returns the families that a strategy looks at: the graph as asked for
// and, where values wait in half and some are computed again, the one in which
// casts run early if they run at their readers there, or the other way round. The
// first lets float32 values die, the second binds no order.
func (p *Planner) families(s *planner.Solver) iter.Seq2[*family, error] {
	return func(yield func(*family, error) bool) {
		if !yield(p.asked, nil) {
			return
		}
		half := p.opts.Precision
		if half == nil || !half.StashOnly || s.Name == "none" || p.stopped() {
			return
		}
		if p.turned == nil {
			o, other := p.opts, *half
			other.Early = !half.Early
			o.Precision = &other
			f, err := p.newFamily(o)
			if err != nil {
				yield(nil, err)
				return
			}
			p.turned = f
		}
		yield(p.turned, nil)
	}
}

// variants yields the variants of a family that a solver chooses from.
func (p *Planner) variants(s *planner.Solver, f *family) iter.Seq2[*Variant, error] {
	return func(yield func(*Variant, error) bool) {
		for i := range choices {
			v, err := p.variant(s, f, i)
			if (v != nil || err != nil) && !yield(v, err) || err != nil {
				return
			}
		}
	}
}

// chooses reports that a solver is to choose what is divided.
func (p *Planner) chooses(s *planner.Solver) bool {
	o := &p.opts
	return s.Frontier != nil && !o.divides() && !o.AsIs && p.Problem().HasBackward()
}

// whole is the variant that divides what a choice does except updates; nil where the choice
// divides none, or there is no such variant yet.
func (f *family) whole(choice int) *Variant {
	parts := choices[choice].Divisions
	if parts.Rows == (Division{}) {
		return nil
	}
	parts.Rows = Division{}
	for i, other := range choices {
		if other.Divisions == parts {
			return f.variants[i]
		}
	}
	return nil
}

// offers reports that a solver looks at a choice.
func (p *Planner) offers(s *planner.Solver, choice int) bool {
	c := choices[choice]
	switch {
	case choice == 0:
		return true
	case !p.chooses(s) || c.bound && p.opts.Outputs != step.Rows:
		return false
	case c.far:
		return p.slicesPay() && fineSlices(p.Problem()) > slicesOfBatch
	}
	return c.Batch == Division{} || p.slicesPay()
}

// A search looks at micro-batches where a node of a slice takes startingFLOPs on average, so
// that starting it, of the order of 10 µs, is little beside it, and where planning takes
// half a minute, for mostSliceNodes of all slices together, or about as long as a step: some
// 2 ms a node, in which a core computes planningFLOPs. Backward counts as twice the nodes of
// forward; those of updates are not sliced. Of more than slicesOfBatch, all together have mostFineNodes.
const startingFLOPs, planningFLOPs, mostSliceNodes, mostFineNodes = 8 << 20, 256 << 20, 16_000, 8_000

// nodesOfSlice is about how many nodes a slice of the batch has.
func nodesOfSlice(p *planner.Problem) (nodes int64) {
	for i := range p.Ops {
		if p.Ops[i].Forward {
			nodes += 3
		}
	}
	return nodes
}

// fineSlices is the most micro-batches that are worth it: a power of two from slicesOfBatch to mostSlices.
func fineSlices(p *planner.Problem) int {
	nodes, n := nodesOfSlice(p), int64(slicesOfBatch)
	for 2*n <= mostSlices && 2*n*nodes <= mostFineNodes && p.FLOPs() >= 2*n*nodes*startingFLOPs {
		n *= 2
	}
	return int(n)
}

// slicesPay reports a graph whose step may as well be computed in micro-batches, unless it is
// so already. A device that is not the CPU takes longer to start a node, and was not measured.
func (p *Planner) slicesPay() bool {
	if _, sliced := p.given.Metadata(step.LayersKey); sliced || p.opts.provider().Device || p.opts.WebGPU {
		return false
	}
	nodes := slicesOfBatch * nodesOfSlice(p.Problem())
	least := int64(startingFLOPs)
	if nodes > mostSliceNodes {
		least = planningFLOPs
	}
	return p.Problem().FLOPs() >= nodes*least
}

// divides reports that the user asked for parts.
func (o *Options) divides() bool {
	return o.Divisions != Divisions{}
}

// variant returns a family's variant of a choice, which it prepares when it is first asked
// for; nil where another one divides the same, a layer that has a budget is none once it is
// divided, or the solver has no choice.
func (p *Planner) variant(s *planner.Solver, f *family, choice int) (*Variant, error) {
	if !p.offers(s, choice) {
		return nil, nil
	}
	if f.variants[choice] != nil || p.stopped() {
		return f.variants[choice], nil
	}
	q, err := p.divided(f, choice)
	if q == nil {
		return nil, err
	}
	p.looking(choice, len(choices))
	f.divided[choice] = nil
	v, err := q.complete(p.engine)
	if _, ok := errors.AsType[*noLayerError](err); ok {
		v, err = nil, nil
	}
	f.variants[choice] = v
	return v, err
}

// divided returns a family's variant of a choice as it is once all that is divided is; nil where
// there is none that is not prepared yet.
func (p *Planner) divided(f *family, choice int) (*preparation, error) {
	if f.asked[choice] || p.stopped() {
		return f.divided[choice], nil
	}
	parts := choices[choice].Divisions
	if like := p.opts.Like; like != nil && *like != parts {
		return nil, nil
	}
	rows := parts.Rows != Division{}
	if rows && (!f.variants[0].Analysis.Roles.Updates() || f.slicing != nil && math.IsInf(*f.slicing, 1)) {
		return nil, nil
	}
	o := f.options
	o.Divisions = parts
	q, err := divide(p.engine, p.given, o)
	if err != nil {
		return nil, err
	}
	f.asked[choice] = true
	f.adds[choice] = f.share(q.added + rereadFLOPs(f.variants[0].Analysis, q.reread))
	if rows {
		f.slices(q)
	}
	if rows && q.Divided.Updates == 0 || f.has(q.Divided) {
		return nil, nil
	}
	f.divided[choice] = q
	return q, nil
}

// has reports that one of the variants so far is divided so.
func (f *family) has(d Divided) bool {
	for i, q := range f.divided {
		if v := f.variants[i]; v != nil && v.Divided == d || q != nil && q.Divided == d {
			return true
		}
	}
	return false
}

// slices notes what it takes to compute updates in slices: more than any work where none
// can be.
func (f *family) slices(q *preparation) {
	work := math.Inf(1)
	if q.Divided.Updates > 0 {
		work = f.share(q.added)
	}
	f.slicing = &work
}

// share is work in FLOPs as a share of the plain step's.
func (f *family) share(work int64) float64 {
	return float64(work) / float64(max(1, f.variants[0].Problem().FLOPs()))
}

// floor is the least work of the variant of a choice, as a share of the plain step's, that is
// known before it is prepared. Only where those divided less add no more than is known
// already, it is divided to tell.
func (p *Planner) floor(f *family, choice int, known float64) (float64, error) {
	if least := f.addsLeast(choice); least > known {
		return least, nil
	}
	rows := choices[choice].Rows
	switch {
	case rows == (Division{}):
		_, err := p.divided(f, choice)
		return f.adds[choice], err
	case !f.variants[0].Analysis.Roles.Updates():
		return 0, nil
	}
	if f.slicing == nil {
		o := f.options
		o.Rows = rows
		q, err := divide(p.engine, p.given, o)
		if err != nil {
			return 0, err
		}
		f.slices(q)
	}
	return *f.slicing, nil
}

// addsLeast is what dividing by a choice adds at least, by what was divided so far.
func (f *family) addsLeast(choice int) float64 {
	for choice > 0 && !f.asked[choice] {
		choice = choices[choice].beyond
	}
	return f.adds[choice]
}
