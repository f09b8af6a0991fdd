// Package normalize rewrites what exporters decompose into the standard
// operators, before anything is differentiated or planned: ONNX Runtime fuses
// such patterns at its higher levels, which changes the order of execution and
// with it the memory, and a decomposed norm keeps four values for backward where
// the operator keeps two numbers a row.
//
// The passes are rows of one table, run in its order. Each leaves the model
// equal in value, up to rounding.
package normalize

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
)

// Options say how to normalize.
type Options struct {
	// Dims are numbers for free dimensions, by symbol.
	Dims map[string]int64
	// After sees the model as each pass left it.
	After onnx.AfterPass
}

// A pass is one rewriting of the whole graph.
type pass struct {
	name, doc string
	run       func(*state) error
}

// Result says how many places each pass rewrote.
type Result struct {
	Applied map[string]int
}

// state is the model while passes run.
type state struct {
	g     *onnx.Graph
	b     *build.Builder
	types *infer.Result
	count int
}

func newState(m *onnx.Model, types *infer.Result) *state {
	return &state{g: m.Graph, types: types, b: build.New(m.Graph, types, "normalize")}
}

// inferred is the state of a model whose types are inferred first.
func inferred(m *onnx.Model, dims map[string]int64) (*state, error) {
	types, err := infer.Model(m, infer.Options{Dims: dims})
	if err != nil {
		return nil, err
	}
	return newState(m, types), nil
}

// passes in order; what needs what is said in the rows.
var passes = []pass{
	{"branches", "a SequenceMap over a list in place is written out, an If whose condition is known becomes the branch taken, an element of such a list itself, as what an Optional holds; first, since all others look past control flow", branches},
	{"constants", "Constant nodes become initializers, so that patterns see their numbers", constants},
	{"casts", "CastLike becomes Cast to the type that its second input is known to have", casts},
	{"identities", "Identity, Dropout outside training, Cast to the own type, also by way of one that holds all its numbers: their input takes their place", identities},
	{"fold", "integers that inference knows, and one-element floats of constants, become constants; needs constants", fold},
	{"copies", "Tile becomes Expand, and a Reshape where it repeats an axis of several elements; needs fold for how often", copies},
	{"noops", "a convolution's bias of zeros goes; what adds 0, multiplies by 1, expands to the own shape or slices all: its input takes its place, as ONNX Runtime has it do at level 1, behind the back of a plan; needs fold", noops},
	{"sequences", "lists of tensors become Split and Concat; needs fold for sizes and positions", sequences},
	{"layouts", "recurrences whose first axis is the batch get the time first, as kernels want it", layouts},
	{"paddings", "convolutions with dilations that are to keep the extents, and transposed ones with given extents, get their padding in numbers, as kernels and ONNX Runtime's inference want it", paddings},
	{"choices", "Where between masks becomes And and Or, which have kernels", choices},
	{"eyes", "EyeLike of a type that it has no kernel for, as of masks, is cast from integers", eyes},
	{"layernorms", "decomposed LayerNorms become LayerNormalization; needs fold for epsilon and the axes", layerNorms},
	{"gelus", "erf and tanh GELUs become Gelu; needs fold for the factors", gelus},
	{"norms", "roots of a sum of squares become ReduceL2, whose slope at 0 is known; needs fold for the exponents", norms},
	{"logarithms", "logarithms of a sigmoid, of 1 less one and of a sum of two exponentials become what cannot overflow, as in PyTorch; needs fold for the 1", logarithms},
	{"guards", "guards against rows masked as a whole go where no row can be", guards},
	{"splits", "Slices and Gathers that tile an axis become Split; needs fold for the bounds", splits},
	{"linears", "MatMul with a matrix and Add become Gemm", linears},
	{"gemms", "a Transpose before Gemm becomes its attribute; after linears", gemms},
	{"reshapes", "chains of Reshape become one, and a Gather of all in their order is one, a GatherND by a batch's own places one of that batch; before scales and transposes, which look through one at most", reshapes},
	{"scales", "constant factors around a batched product are gathered before the Transpose of an operand", scales},
	{"transposes", "swapped operands of batched products are permuted in one step; after scales", transposes},
	{"commons", "equal nodes become one; last, when all have their final form", commons},
}

// Model runs all passes over m. The model's types are inferred anew between
// them.
func Model(m *onnx.Model, o Options) (*Result, error) {
	res := &Result{Applied: map[string]int{}}
	m.Graph.NameNodes()
	m.Graph.TrimInputs()
	for _, p := range passes {
		s, err := inferred(m, o.Dims)
		if err != nil {
			return nil, err
		}
		if err := p.run(s); err != nil {
			return nil, fmt.Errorf("pass normalize/%s: %w", p.name, err)
		}
		if err := s.b.Err(); err != nil {
			return nil, fmt.Errorf("pass normalize/%s: %w", p.name, err)
		}
		m.Graph.RemoveDead()
		res.Applied[p.name] = s.count
		if err := o.After.See("normalize/"+p.name, m); err != nil {
			return nil, err
		}
	}
	return res, nil
}
