package runtime

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A ShortProductError names a node whose result would be wrong on CUDA
// (traits.ShortOnCUDA).
type ShortProductError struct{ Node, Why string }

func (e *ShortProductError) Error() string {
	return fmt.Sprintf("node %q: %s: write the file anew with remat rewrite --provider cuda, or run it with --provider cpu", e.Node, e.Why)
}

// ShortProducts returns a *ShortProductError of the first product of a typed graph of
// which CUDA's kernel computes only some, nil where there is none.
func ShortProducts(g *onnx.Graph) error {
	for _, n := range g.Nodes {
		if why := traits.WhyShort(n); why != "" {
			return &ShortProductError{n.Label(), why}
		}
	}
	return nil
}

// NoKernel says of which node of a graph the CUDA provider has no kernel, though it may take
// it, and what to do; nil where there is none. ONNX Runtime itself fails with what its own
// code says.
func NoKernel(g *onnx.Graph) error {
	for _, n := range g.Nodes {
		switch {
		case traits.WidensBlocks(n):
			return fmt.Errorf("node %q: the CUDA provider has no kernel for weights in blocks: run it with --provider cpu, or derive it without --quantize-frozen", n.Label())
		case traits.ComputesStatistics(n):
			return fmt.Errorf("node %q: the CUDA provider has no BatchNormalization for training: write the file anew with remat rewrite --provider cuda, or run it with --provider cpu", n.Label())
		}
	}
	return nil
}

// missingKernel adds to ONNX Runtime's word that it has no kernel for a node, or that the
// operator does not take such a value, what to do where that is for a type for which many
// operators have none, or for an opset from which on it draws no numbers.
func missingKernel(g *onnx.Graph, err error) error {
	var refused *ort.Error
	if !errors.As(err, &refused) {
		return err
	}
	untyped := refused.Code == ort.InvalidGraph && strings.Contains(refused.Message, "'tensor(bfloat16)'")
	switch {
	case refused.Code != ort.NotImplemented && !untyped:
		return err
	case drawsAt22.MatchString(refused.Message):
		return fmt.Errorf("%w: it draws random numbers up to opset 21: export the model with opset_version=20", err)
	case computesIn(g, onnx.BFloat16):
		return fmt.Errorf("%w: the model computes in bfloat16, for which it has few kernels: export the model in float32, and --precision bf16 computes in bfloat16 where it can", err)
	case computesIn(g, onnx.Float64):
		return fmt.Errorf("%w: the model computes in float64, for which some operators have no kernel: export the model in float32", err)
	case computesIn(g, onnx.Float16):
		return fmt.Errorf("%w: the model computes in float16, for which some operators have no kernel: export the model in float32, and --precision fp16 computes in float16 where it can", err)
	}
	return err
}

// drawsAt22 are the versions of random operators for which no release has a kernel on the CPU.
var drawsAt22 = regexp.MustCompile(`implementation for (RandomUniform|RandomUniformLike|RandomNormal|RandomNormalLike|Bernoulli|Multinomial)\(22\)`)

// computesIn reports that a graph reads values of a type, or casts to it. Scalars of float64
// are also in graphs of other types: optimizers compute rates in it.
func computesIn(g *onnx.Graph, d onnx.DType) bool {
	counts := func(v *onnx.Value) bool { return d != onnx.Float64 || !v.Type.Ranked || len(v.Type.Shape) > 0 }
	of := func(v *onnx.Value) bool { return v.Type.DType == d && counts(v) }
	casts := func(n *onnx.Node) bool {
		return n.Is("Cast") && onnx.DType(n.Int("to", 0)) == d && counts(n.Outputs[0])
	}
	return slices.ContainsFunc(g.Inputs, of) || slices.ContainsFunc(g.Initializers, of) || slices.ContainsFunc(g.Nodes, casts)
}

// shortProducts is ShortProducts of a model whose free extents are these. A model that
// cannot be typed is ONNX Runtime's to judge.
func shortProducts(m *onnx.Model, dims map[string]int64) error {
	typed, err := m.Clone()
	if err != nil {
		return err
	}
	if _, err = infer.Model(typed, infer.Options{Dims: dims}); err != nil {
		return typed.Close()
	}
	return errors.Join(ShortProducts(typed.Graph), typed.Close())
}
