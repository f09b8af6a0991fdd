package predict

// Who is alive when: every buffer of a step belongs to one category.
//
//	made on the way to the loss     activation
//	made after it                   gradient
//	returned                        output, or gradient where the roles say so
//	borrowed by a kernel            temporary
//
// Recompute clones stand after the loss but hold activations; they are known
// by the name that the pass gives them.

import (
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

// recomputePass made what runs again.
const recomputePass = "recompute"

// categories gives each value of the graph its category.
type categories []Category

func newCategories(b *builder, r Roles) categories {
	c := make(categories, len(b.values))
	forward := forwardNodes(b, r.Loss)
	for i, v := range b.values {
		switch {
		case v.IsOutput() && r.isGradient(v.Name):
			c[i] = Gradient
		case v.IsOutput():
			c[i] = Output
		case v.Producer != nil && forward != nil && !forward[v.Producer] &&
			!v.Producer.MadeBy(recomputePass):
			c[i] = Gradient
		}
	}
	return c
}

// forwardNodes are those that the loss depends on; nil if there is no loss.
func forwardNodes(b *builder, loss string) map[*onnx.Node]bool {
	var stack []*onnx.Node
	for _, v := range b.values {
		if loss != "" && v.Name == loss && v.Producer != nil {
			stack = append(stack, v.Producer)
		}
	}
	if len(stack) == 0 {
		return nil
	}
	seen := map[*onnx.Node]bool{stack[0]: true}
	for len(stack) > 0 {
		n := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for _, list := range [2][]*onnx.Value{n.Inputs, n.Captures} {
			for _, v := range list {
				if v != nil && v.Producer != nil && !seen[v.Producer] {
					seen[v.Producer] = true
					stack = append(stack, v.Producer)
				}
			}
		}
	}
	return seen
}
