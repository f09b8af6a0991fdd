package pipeline

// What is computed in parts, so that it never exists whole: the updates of the
// largest parameters, the loss, wide products inside layers (package
// rewrite/tile).

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/tile"
	"github.com/onnx-remat/remat/runtime"
)

// maxTiles bounds the parts of a wide product, and rowSlices is the number of
// slices of an update, where the user names no number.
const maxTiles, rowSlices = 16, 16

// slicesOfBatch is the number of micro-batches where a search chooses them, the most where they
// are coarse: then what they read again takes no longer than one part in coarseReread of the step.
// mostSlices is the most where they are fine.
const slicesOfBatch, coarseReread, mostSlices = 8, 32, 32

// balance is how many operations a processor does in the time in which it reads a
// byte. That of a core with AVX-512, measured with the products of GPT-2's loss in
// slices of 32 to 256 rows, is 16: with it what rereading costs explains the time
// of each within 4 % (tile.Region.Auto has the figures).
const balance = 16

// rows computes next values in slices, or reports why not.
func (p *preparation) rows(*runtime.Engine) error {
	if p.unscaled != "" {
		return p.reportRegion("rows", &tile.SkipError{What: "updates", Why: "no loss scaling: " + p.unscaled})
	}
	types, a, forward, err := p.sides()
	if err != nil {
		return err
	}
	var next []*onnx.Value
	names := slices.Collect(maps.Values(a.Roles.New))
	for _, v := range p.Model.Graph.Outputs {
		if slices.Contains(names, v.Name) {
			next = append(next, v)
		}
	}
	divide := tile.Rows
	if p.Options.Outputs == step.Rows {
		divide = tile.BoundRows
	}
	found, applied, skipped, err := divide(p.Model, types, next, forward, p.Options.Rows.or(rowSlices))
	p.reportParts("rows", found, applied, skipped, tile.SkipError{What: "updates", Why: "the graph updates nothing"})
	p.Divided.Updates = applied
	if err != nil || applied == 0 {
		return err
	}
	_, after, _, err := p.sides()
	if err == nil {
		p.added = after.Problem.FLOPs() - a.Problem.FLOPs()
	}
	return err
}

// sides types and analyzes the graph as it stands; forward tells its two sides
// apart.
func (p *preparation) sides() (types *infer.Result, a *analysis.Analysis, forward func(*onnx.Node) bool, err error) {
	if types, err = infer.Model(p.Model, infer.Options{Dims: p.Options.Dims}); err != nil {
		return nil, nil, nil, err
	}
	a, err = analysis.Analyze(p.Model, analysis.Options{Dims: p.Options.Dims, Roles: p.roles, Costs: p.Options.Costs, Sides: true})
	if err != nil {
		return nil, nil, nil, err
	}
	is := map[*onnx.Node]bool{}
	for i, n := range a.Nodes {
		is[n] = a.Problem.Ops[i].Forward
	}
	return types, a, func(n *onnx.Node) bool { return is[n] }, nil
}

// reportParts reports a pass that divides what it finds; none says why it found nothing.
func (p *preparation) reportParts(pass string, found, applied int, skipped []*tile.SkipError, none tile.SkipError) {
	if found == 0 {
		found, skipped = 1, []*tile.SkipError{&none}
	}
	report := rewrite.Report{Pass: pass, Requested: found, Applied: applied}
	for _, s := range skipped {
		report.Skipped = append(report.Skipped, rewrite.Skip{What: s.What, Why: s.Why})
	}
	p.Reports = append(p.Reports, report)
}

// batch computes forward and backward over slices of the batch, or reports why not. The
// guards of updates in place come back once the slices are made (pass updates).
func (p *preparation) batch(*runtime.Engine) error {
	control.Lift(p.Model.Graph)
	if err := normalize.Sizes(p.Model, p.Options.Dims); err != nil { // no rule divides what computes sizes of the whole
		return err
	}
	types, a, _, err := p.sides()
	if err != nil {
		return err
	}
	region, err := batchRegion(p.Model, a)
	if err == nil {
		err = drawsAsAsked(region, p.Options.Batch)
	}
	if err == nil {
		parts := batchSlices(region, p.Options.Batch, a)
		reread := region.Reread(parts)
		a.FindLayers()
		region.Follow(a.LayerValues()...)
		if err = region.Apply(types, parts); err == nil {
			p.Divided.Batch, p.reread = parts, p.reread+reread
			err = a.Layering(region.Versions).Write(p.Model)
		}
	}
	return p.reportRegion("batch", err)
}

// drawsAsAsked refuses to divide what draws random numbers unless it was asked for: a step in
// micro-batches is another draw than the whole one, so its results are others.
func drawsAsAsked(region *tile.Region, want Division) error {
	if k := slices.IndexFunc(region.Nodes, traits.Draws); k >= 0 && want.Mode != InParts {
		return &tile.SkipError{What: region.Nodes[k].Label(), Why: "each micro-batch would draw random numbers of its own; ask for it by --micro-batches N"}
	}
	return nil
}

// batchSlices is the number of slices that Options.Batch comes to.
func batchSlices(region *tile.Region, want Division, a *analysis.Analysis) int {
	n := want.or(slicesOfBatch)
	if want.Mode == Fine {
		n = fineSlices(a.Problem)
	}
	for ; want.Mode == Coarse && n > 2; n /= 2 {
		if coarseReread*rereadFLOPs(a, region.Reread(region.Parts(n))) <= a.Problem.FLOPs() {
			break
		}
	}
	return region.Parts(n)
}

// rereadFLOPs is how many operations take as long as reading so many bytes.
func rereadFLOPs(a *analysis.Analysis, bytes int64) int64 {
	return int64(float64(bytes*balance) * a.CostOfFLOP())
}

// reportRegion reports a pass that divides one region, unless err says more than why it was
// left whole.
func (p *preparation) reportRegion(pass string, err error) error {
	var skip *tile.SkipError
	switch {
	case err == nil:
		p.reportParts(pass, 1, 1, nil, tile.SkipError{})
	case errors.As(err, &skip):
		p.reportParts(pass, 0, 0, nil, *skip)
		err = nil
	}
	return err
}

// batchRegion is what is computed over slices of the batch, by the first of the axes that may be
// its that divides the step; where none does, the error is that of the first. One that is not the
// first axis of the first feeds may be another thing, as the width of what a layer contracts, so it has to divide
// most of the step's work, and of the nodes of forward.
func batchRegion(m *onnx.Model, a *analysis.Analysis) (*tile.Region, error) {
	first := error(&tile.SkipError{What: "batch", Why: "no feed has a batch axis"})
	for i, b := range batches(m.Graph, a.Roles) {
		plainly := i == 0 && b.axis == 0
		region, err := tile.Batch(m, b.feeds, b.axis)
		if err == nil && (plainly || mostOf(m.Graph, a, region.Nodes)) {
			return region, nil
		}
		if plainly {
			first = err
		}
	}
	return nil, first
}

// mostOf reports nodes that do three quarters of the step's work and are half of those of forward that
// depend on a feed: what arranges weights, as for a recurrence, has no batch.
func mostOf(g *onnx.Graph, a *analysis.Analysis, nodes []*onnx.Node) bool {
	in, flops, forward, all := onnx.Places(nodes), int64(0), 0, 0
	fed := onnx.Places(step.DependenciesOf(g).Forward(step.Data, feedsOf(g, a.Roles)...).Nodes())
	for i, n := range a.Nodes {
		op := &a.Problem.Ops[i]
		_, ok := in[n]
		if ok {
			flops += op.FLOPs
		}
		if _, reads := fed[n]; op.Forward && reads {
			all++
			if ok {
				forward++
			}
		}
	}
	return 4*flops >= 3*a.Problem.FLOPs() && 2*forward >= all
}

// A batch is an axis of feeds that may be that of the samples.
type batch struct {
	feeds []*onnx.Value
	axis  int
}

// feedsOf are the inputs that are neither trained nor moved by the step.
func feedsOf(g *onnx.Graph, roles step.Roles) (feeds []*onnx.Value) {
	for _, v := range g.Inputs {
		if roles.Grad[v.Name] == "" && roles.New[v.Name] == "" && v.Init == nil {
			feeds = append(feeds, v)
		}
	}
	return feeds
}

// batches are the axes that may hold the samples: the first axis of the feeds that are as long there as
// the first feed, as the next one and so on, then the second, as of sequences that have the time
// first; last, the first of those feeds alone, as another may be as long by chance. Other feeds take
// part where these lead to what reads them.
func batches(g *onnx.Graph, roles step.Roles) []batch {
	var list, alone []batch
	for axis := range 2 {
		from := len(list)
		for _, v := range feedsOf(g, roles) {
			if len(v.Type.Shape) <= axis || v.Type.Shape[axis].Is(1) {
				continue
			}
			at := slices.IndexFunc(list[from:], func(b batch) bool { return b.feeds[0].Type.Shape[axis] == v.Type.Shape[axis] })
			if at < 0 {
				list = append(list, batch{axis: axis})
				at = len(list) - 1 - from
			}
			list[from+at].feeds = append(list[from+at].feeds, v)
		}
		for _, b := range list[from:] {
			if len(b.feeds) > 1 {
				alone = append(alone, batch{b.feeds[:1], axis})
			}
		}
	}
	return append(list, alone...)
}

// chunk computes the loss, that of each micro-batch where there are some, over slices of the
// tokens, or reports why not.
func (p *preparation) chunk(*runtime.Engine) error {
	types, a, _, err := p.sides()
	if err != nil {
		return err
	}
	loss := p.Model.Graph.Value(a.Roles.Loss)
	if loss == nil {
		return p.reportRegion("chunk", &tile.SkipError{What: "loss", Why: "no loss found"})
	}
	products, err := tile.Projections(p.Model.Graph, loss)
	for i := 0; err == nil && i < len(products); i++ {
		err = p.chunkAround(products[i], types)
	}
	return p.reportRegion("chunk", err)
}

// chunkAround slices the region around an output projection of the loss.
func (p *preparation) chunkAround(product *onnx.Node, types *infer.Result) error {
	region, err := tile.Around(p.Model, product)
	if err != nil {
		return err
	}
	parts, err := inSlices(region, p.Options.Chunk)
	if err != nil {
		return err
	}
	reread, workspace := region.Reread(parts), region.Workspace(parts)
	if err := region.Apply(types, parts); err != nil {
		return err
	}
	p.Divided.Loss, p.Divided.Workspace, p.reread = parts, max(workspace, p.Divided.Workspace), p.reread+reread
	return nil
}

// inSlices is the number of slices that Options.Chunk comes to: few enough rows
// that a slice is small, and enough that its products are not slow
// (tile.Region.Auto has the figures); eight slices are small beside most steps.
func inSlices(region *tile.Region, want Division) (int, error) {
	switch want.Mode {
	case Automatic:
		return region.Auto(128), nil
	case Coarse:
		return min(region.Auto(256), region.Parts(8)), nil
	case Fine:
		return region.Auto(1), nil
	case WithinBytes:
		parts, ok := region.Within(want.Bytes)
		switch {
		case !ok:
			return 0, &WorkspaceError{want.Bytes, region.Workspace(parts), parts}
		case parts == 1:
			size := units.Distinct(region.Workspace(1), want.Bytes)
			return 0, &tile.SkipError{What: "loss", Why: fmt.Sprintf("whole, it holds %s, which is within %s", size[0], size[1])}
		}
		return parts, nil
	}
	return region.Parts(want.N), nil
}

// A WorkspaceError says that no slice of the loss is small enough.
type WorkspaceError struct {
	// Asked and Least are in bytes; Parts is the number of slices of the least.
	Asked, Least int64
	Parts        int
}

func (e *WorkspaceError) Error() string {
	size := units.Distinct(e.Asked, e.Least)
	return fmt.Sprintf("a workspace of %s for the loss cannot be met: of %d slices, the most that there can be, each holds %s", size[0], e.Parts, size[1])
}

// tile computes wide products in parts, or reports why not.
func (p *preparation) tile(*runtime.Engine) error {
	types, _, forward, err := p.sides()
	if err != nil {
		return err
	}
	found, applied, skipped, err := tile.Wide(p.Model, types, forward, p.Options.Tile.or(maxTiles))
	p.reportParts("tile", found, applied, skipped, tile.SkipError{What: "products", Why: fmt.Sprintf("none is %d times as large as its larger factor", tile.Widening)})
	p.Divided.Products = applied
	return err
}
