package pipeline

// What was decided, for people: each measure, what it saves, and what it costs. The
// savings add up, from what the first split takes as it is to the file that was
// written:
//
//	batch in parts ─▶ order ─▶ in slices ─▶ recomputation

import (
	"fmt"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/planner"
)

// A Decision is a measure that was taken, or was not for a reason.
type Decision struct {
	Measure string
	// Did says what was done, Costs what it costs beside work, "" for nothing.
	Did, Costs string
	// Saves is what it takes off the total, in bytes, and Work what it adds to an
	// update's work, as a share of the plain one; nil where neither can be told.
	Saves *int64
	Work  *float64
}

// decisionParts names the decision about what is computed in parts.
const decisionParts = "in slices"

// decisions explains the attempt that is taken.
func (f *fitting) decisions(a *attempt) ([]Decision, error) {
	var list []Decision
	plain := a.bytes(a.planner.asked.reordered)
	if d, ok := f.decideSplit(a, plain); ok {
		list = append(list, d)
	}
	order := Decision{Measure: "order", Work: new(float64)}
	if before := TotalOf(a.planner.Before); before.Exact {
		saved := before.Bytes() - TotalOf(a.planner.asked.reordered.Prediction).Bytes()
		if a.derived == nil && f.o.Pipeline.Precision == nil {
			order.Saves = &saved
		}
	}
	order.Did = updatedText(a.file)
	list = append(list, order)
	if d, ok := f.decideHalf(a); ok {
		list = append(list, d)
	}
	parts, whole, err := f.decideParts(a, plain)
	if err != nil {
		return nil, err
	}
	list = append(list, parts...)
	if n := a.file.Verdict.Recomputed; n > 0 {
		saved, work := whole-a.bytes(a.file), float64(a.file.Plan.RecomputeFLOPs(a.file.Problem())-a.file.Problem().Added-a.file.Problem().Reread)
		work /= float64(max(1, a.file.Problem().FLOPs()))
		list = append(list, Decision{Measure: "recomputation", Did: units.Counted(n, "node") + " run again in backward", Saves: &saved, Work: &work})
	}
	if f.noNorm && f.o.Norm != NormNever {
		list = append(list, Decision{Measure: "gradient norm", Did: "not returned: whole gradients would wait to be squared; --clip-norm or --gradient-norm asks for it"})
	}
	return list, nil
}

// decideSplit explains the micro-batch.
func (f *fitting) decideSplit(a *attempt, plain int64) (Decision, bool) {
	d := Decision{Measure: "micro-batch"}
	first := f.attempts[0]
	switch {
	case f.whole != "":
		d.Did = "the batch stays whole: " + f.whole
		return d, true
	case a.runs <= 1 || a.micro == 0:
		return d, false
	case f.training:
		d.Did = fmt.Sprintf("%d × %d runs, as the graph says", a.micro, a.runs)
		return d, true
	}
	d.Did = fmt.Sprintf("%d = %d × %d runs", a.micro*a.runs, a.micro, a.runs)
	if f.axis.fixed > 0 {
		d.Did += ", as the file's batch is fixed"
	}
	d.Costs = "one set of gradients, " + units.Bytes(a.file.summedBytes())
	if first != a {
		saved, work := first.bytes(first.planner.asked.reordered)-plain, a.plain/first.plain-1
		d.Saves, d.Work = &saved, &work
	}
	return d, true
}

// summedBytes is the size of the sums of gradients that a file keeps from run to run, also
// where another file updates from them.
func (f *File) summedBytes() (total int64) {
	for _, in := range f.Model.Graph.Inputs {
		if f.Roles().Grad[in.Name] != "" || step.GradientOf(f.Model.Graph, in) != nil {
			total += in.Type.KnownBytes()
		}
	}
	return total
}

// gradientBytes is the size of a set of gradients, by their parameters: their own types
// may be hidden from ONNX Runtime.
func gradientBytes(list []waited) (total int64) {
	for _, w := range once(list) {
		total += w.param.Type.KnownBytes()
	}
	return total
}

// updatedText says how many parameters are updated in backward.
func updatedText(file *File) string {
	rep := file.UpdatesInBackward()
	list, _ := file.gradients()
	if len(list) == 0 {
		return "the one that holds least"
	}
	bytes := gradientBytes(list)
	text := fmt.Sprintf("%d of %d parameters updated in backward, as soon as their gradient is complete", rep.Applied, rep.Requested)
	if rep.Applied == rep.Requested {
		return text + fmt.Sprintf(": the gradients, %s, are never all alive", units.Bytes(bytes))
	}
	if len(rep.Skipped) > 0 {
		text += "; " + rep.Skipped[0].Why
	}
	return text
}

func (f *fitting) decideHalf(a *attempt) (Decision, bool) {
	if f.o.Pipeline.Precision == nil {
		return Decision{}, false
	}
	d := Decision{Measure: "half type", Did: "left out, as it saves nothing here"}
	if p := PrecisionOf(a.file.Model); p != nil {
		d.Did = p.String()
		d.Costs = "rounding"
		if why := a.file.unscaled(); why != "" {
			d.Costs += ", and gradients too small for " + p.Type + ", as the loss is not scaled: " + why
		}
	}
	return d, true
}

// decideParts explains what is computed in parts; whole is what the variant takes in
// all, in bytes, where nothing is computed again.
func (f *fitting) decideParts(a *attempt, plain int64) (list []Decision, whole int64, err error) {
	v := a.file.Variant
	did := dividedText(v)
	if did == "" {
		return nil, plain, nil
	}
	none, err := planner.Solve(v.Problem(), "none")
	if err != nil {
		return nil, 0, err
	}
	file, err := a.planner.write(v, none)
	if err != nil {
		return nil, 0, err
	}
	whole = a.bytes(file)
	saved, work := plain-whole, float64(v.Problem().Added+v.Problem().Reread)/float64(max(1, v.Problem().FLOPs()))
	return []Decision{{Measure: decisionParts, Did: did, Costs: "the last bits, which may differ", Saves: &saved, Work: &work}}, whole, nil
}

// dividedText says what a variant computes in parts, "" for nothing.
func dividedText(v *Variant) string {
	var did []string
	for _, p := range []struct {
		n    int
		pass string
	}{{v.Divided.Batch, "batch"}, {v.Divided.Loss, "chunk"}, {v.Divided.Products, "tile"}, {v.Divided.Updates, "rows"}} {
		if p.n > 0 {
			did = append(did, doneWords[p.pass](p.n, v))
		}
	}
	return strings.Join(did, ", ")
}
