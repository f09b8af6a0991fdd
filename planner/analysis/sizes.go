package analysis

import (
	"github.com/onnx-remat/remat/onnx"
)

// extents returns a value's shape in numbers; false where it is not known.
// Free dimensions take their number from the options, or 1.
func (a *Analysis) extents(v *onnx.Value) ([]int64, bool) {
	if v == nil || !v.Type.Ranked {
		return nil, false
	}
	dims := make([]int64, len(v.Type.Shape))
	for i, d := range v.Type.Shape {
		if n, ok := d.Int(); ok {
			dims[i] = n
			continue
		}
		if !d.Known() {
			return nil, false
		}
		d = d.Subst(a.opts.Dims)
		rest := make(map[string]int64)
		for _, s := range d.Symbols() {
			rest[s] = 1
		}
		n, ok := d.Subst(rest).Int()
		if !ok {
			return nil, false
		}
		dims[i] = n
	}
	return dims, true
}

// elements returns the number of elements of a value, 0 where unknown.
func (a *Analysis) elements(v *onnx.Value) int64 {
	dims, ok := a.extents(v)
	if !ok {
		return 0
	}
	n, _ := onnx.Elements(dims)
	return n
}

// sized is a value's type with its extents in numbers; the zero type, which has no
// size, where one is not known.
func (a *Analysis) sized(v *onnx.Value) onnx.Type {
	dims, ok := a.extents(v)
	if !ok || v.Type.Other != nil {
		return onnx.Type{}
	}
	return onnx.TensorOf(v.Type.DType, onnx.StaticShape(dims...))
}
