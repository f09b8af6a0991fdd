package step

// What the CPU's provider makes of float16. For a node that has no kernel in it, ONNX
// Runtime computes in float32, between casts that it inserts. The cast of a value is shared
// by all such readers and lives until the last of them has run; a cast back that such a
// reader follows is taken out with it.
//
//	file        a ─▶ Mul16 ─▶ h16 ─▶ Exp16        readers in backward: Mul16 …
//	executed    a ─▶ Mul32 ─▶ h32 ─▶ Exp32                             Mul32 …
//
// So what these nodes read is held in float32. In a graph that ONNX Runtime saved the casts
// stand as nodes, and none of this applies.
//
// Weakness: a value that kernels in float16 read as well is held twice and counts once; a
// function that ONNX Runtime expands (Softmax) counts as one node; a copy in float16 that no
// reader is left of counts still. On the CPU a file holds 1.04 to 1.2 times what is promised
// then, and 1.5 to 2.1 times what its float16 values take. Source: ONNX Runtime,
// core/optimizer/insert_cast_transformer.cc.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
)

// widens reports a node that runs in float32 though it reads float16.
func (t *Translation) widens(n *onnx.Node) bool {
	if !t.options.On.Widens || t.options.Opset == 0 {
		return false
	}
	is, ok := t.widened[n]
	if !ok {
		is = readsHalf(n) && !kernels.Runs(t.options.On.kernels, n, t.options.Opset)
		t.widened[n] = is
	}
	return is
}

// readsHalf reports a node that reads a float16 value.
func readsHalf(n *onnx.Node) bool {
	return slices.ContainsFunc(n.Inputs, func(v *onnx.Value) bool { return v != nil && v.Type.DType == onnx.Float16 })
}

// Wide reports a float16 value that is held in float32.
func (t *Translation) Wide(v *onnx.Value) bool {
	if v.Type.DType != onnx.Float16 || v.Producer == nil || v.IsOutput() {
		return false
	}
	return slices.ContainsFunc(v.Uses(), func(u onnx.Use) bool { return u.Index != onnx.Captured && t.widens(u.Node) })
}
