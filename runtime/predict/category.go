package predict

// Who is alive when: every buffer of a step belongs to one category.
//
//	made on the way to the loss     activation
//	made after it                   gradient
//	returned                        output, or gradient where the roles say so
//	borrowed by a kernel            temporary
//
// Recompute clones stand after the loss but hold activations; they are known
// by their origin.

import (
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// A Category says what a buffer is for.
type Category uint8

const (
	Activation Category = iota
	Gradient
	Output
	Temporary
	// Parameter, State and Feed do not occur in a step's allocations.
	Parameter
	State
	Feed
	// Categories is their number.
	Categories
)

// categories gives each value of the graph its category.
type categories []Category

func newCategories(b *builder, forward *step.Slice) categories {
	gradient := map[string]bool{}
	for _, out := range b.options.Roles.Grad {
		gradient[out] = true
	}
	c := make(categories, len(b.Values))
	for i, v := range b.Values {
		switch {
		case v.IsOutput() && gradient[v.Name]:
			c[i] = Gradient
		case v.IsOutput():
			c[i] = Output
		case v.Producer != nil && forward != nil && !forward.Has(v.Producer) &&
			!v.Producer.MadeBy(onnx.RecomputePass):
			c[i] = Gradient
		}
	}
	return c
}
