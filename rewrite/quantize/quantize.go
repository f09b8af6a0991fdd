// Package quantize holds the frozen weights of a training graph in eight or four bits.
// Each reader of such a weight gets a wide copy of its own, made right before it runs
// and gone after it:
//
//	W ──┬▶ MatMul(x, W)            codes, scales ─▶ DequantizeLinear ─▶ MatMul(x, ·)
//	    └▶ Gemm(g, W) {transB}     codes, scales ─▶ DequantizeLinear ─▶ Gemm(g, ·)
//	W ───▶ Gather(W, i)            Gather(codes, i), Gather(scales, i) ─▶ DequantizeLinear
//
// So even a step in which nothing is recomputed holds no wide copy from the forward
// pass to the backward pass. The scales pass a control dependency on the reader's
// other operand, so the nodes differ: ONNX Runtime merges none of them, makes no
// MatMulNBits of them and runs none early. (No view of int4 has a kernel, so it is the
// scales that wait.)
//
// No gradient is lost: of a product with a frozen weight only the other operand's is
// taken, dx = g Wᵀ, and W there is the same wide copy as in the forward pass.
package quantize

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

// Pass is what every node that is made notes as its origin (onnx.Origin).
const Pass = "quantize"

// opset is the first with blocks and with int4.
const opset = 21

// least is the size in bytes from which a weight is quantized: the nodes that a
// reader gets hold some tens of bytes, and a model has many small weights.
const least = 4 << 10

// A Weight is a frozen weight and what it is held in.
type Weight struct {
	Name string
	// Codes and Scales are the initializers in its place, nil where it stays as it is.
	Codes, Scales *onnx.Value
	// Was is its size in bytes before.
	Was int64
	// Why says why it stays, "" where it does not.
	Why string
}

// Holds names the initializers in the weight's place, none where it stays.
func (w *Weight) Holds() []string {
	if w.Codes == nil {
		return nil
	}
	return []string{w.Codes.Name, w.Scales.Name}
}

// Bytes is the size of the weight as it is held now.
func (w *Weight) Bytes() int64 {
	if w.Codes == nil {
		return w.Was
	}
	return w.Codes.Type.KnownBytes() + w.Scales.Type.KnownBytes()
}

// Frozen quantizes the weights of a training graph that nothing trains: initializers
// of two or more axes that products or a Gather read. It returns those weights in the
// file's order. Types are of m's values, and those of new nodes are added.
func Frozen(m *onnx.Model, kind Kind, types build.Typer) ([]*Weight, error) {
	if kind == None {
		return nil, nil
	}
	q := &quantizer{m: m, b: build.New(m.Graph, types, Pass), weights: map[*onnx.Value]*held{}}
	var list []*Weight
	for _, v := range slices.Clone(m.Graph.Initializers) {
		if !Candidate(v) || ofBackward(v) {
			continue
		}
		w, err := q.weight(v, kind)
		if err != nil {
			return nil, fmt.Errorf("quantize: weight %q: %w", v.Name, err)
		}
		list = append(list, w)
	}
	if len(q.weights) == 0 {
		return list, nil
	}
	if err := upgrade.Model(m, opset); err != nil {
		return nil, fmt.Errorf("quantize: %w", err)
	}
	return list, q.lead()
}

// ofBackward reports a constant that the backward pass alone reads: none of the model, but one
// that a rule made, whose numbers gradients are exact by.
func ofBackward(v *onnx.Value) bool {
	return len(v.Uses()) > 0 && !slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Node == nil || !u.Node.MadeBy("grad") })
}
