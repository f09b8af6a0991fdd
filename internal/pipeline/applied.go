package pipeline

// What the passes of a rewriting did, for people: one line of what was done, and
// one more for each pass that did less than it was asked, with the reason. What
// the user asked for by name, as --precision, always has its line.

import (
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// doneWords says what a pass did n times.
var doneWords = map[string]func(n int, v *Variant) string{
	"recompute": func(n int, _ *Variant) string { return units.Counted(n, "node") + " recomputed" },
	"batch":     func(_ int, v *Variant) string { return fmt.Sprintf("the step in %d micro-batches", v.Divided.Batch) },
	"chunk": func(_ int, v *Variant) string {
		of := ""
		if v.Divided.Batch > 0 {
			of = " of each"
		}
		return fmt.Sprintf("the loss%s in %d parts", of, v.Divided.Loss)
	},
	"tile":      func(n int, _ *Variant) string { return units.Counted(n, "wide product") + " in parts" },
	"rows":      func(n int, _ *Variant) string { return units.Counted(n, "large update") + " by rows" },
	"hold once": func(n int, _ *Variant) string { return units.Counted(n, "frozen weight") + " held once" },
	"scatter":   func(int, *Variant) string { return "gradients of lookups added in place" },
	"edge": func(n int, _ *Variant) string {
		return units.Counted(n, "node") + " held in place by control dependencies"
	},
	"schedule":      func(n int, _ *Variant) string { return units.Counted(n, "node") + " in order" },
	"slice weights": func(n int, _ *Variant) string { return units.Counted(n, "product") + " over slices of a frozen weight" },
}

// Applied says in lines what the passes did.
func (f *File) Applied() []string {
	var done, lines []string
	for _, r := range f.Reports {
		words, known := doneWords[r.Pass]
		if !known || len(r.Skipped) > 0 {
			lines = append(lines, r.String())
		} else if r.Applied > 0 {
			done = append(done, words(r.Applied, f.Variant))
		}
	}
	if len(done) > 0 {
		lines = append(lines, "done: "+strings.Join(done, ", "))
	}
	return lines
}

// Rounding says that a variant adds up in another order than the graph as it was
// given, or draws otherwise, "" where every result keeps its bits.
func (f *File) Rounding() string {
	var why []string
	if DrawsApart(f.Variant.Model.Graph) {
		return fmt.Sprintf("results are of other random numbers: each of %d micro-batches draws its own", f.Variant.Divided.Batch)
	}
	for _, r := range f.Reports {
		switch r.Pass {
		case "batch", "chunk", "tile", "rows", "scatter", "slice weights":
			if r.Applied > 0 {
				why = append(why, doneWords[r.Pass](r.Applied, f.Variant))
			}
		}
	}
	if f.halvesOnCPU() {
		why = append(why, "half values are rounded where ONNX Runtime casts them")
	}
	if len(why) == 0 {
		return ""
	}
	return "results may differ in the last bits: " + strings.Join(why, ", ")
}

// DrawsApart reports random numbers that each micro-batch draws for itself.
func DrawsApart(g *onnx.Graph) bool {
	return slices.ContainsFunc(traits.Drawing(g), func(n *onnx.Node) bool { return n.Origin().Pass == "batch" })
}

// halvesOnCPU reports a graph that was given with half values, for the CPU. Most of its
// kernels there run between casts that ONNX Runtime adds, and it takes pairs of these
// out again, but not where a control dependency stands between them; see docs/precision.md.
func (f *File) halvesOnCPU() bool {
	o := f.Variant.Options
	if o.Precision != nil || o.provider().Device {
		return false
	}
	return slices.ContainsFunc(f.Variant.Model.Graph.Nodes, func(n *onnx.Node) bool {
		return !n.Is("Cast") && slices.ContainsFunc(n.Outputs, func(v *onnx.Value) bool { return v != nil && v.Type.DType.IsHalf() })
	})
}
