package analysis

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/ortmodel"
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

// buffer returns a value's size and its class: equal element size and shape.
func (a *Analysis) buffer(v *onnx.Value) ortmodel.Value {
	val := ortmodel.Value{Class: ortmodel.None}
	dims, ok := a.extents(v)
	t := v.Type
	if !ok || !t.Known() || t.Other != nil {
		a.Unsized = append(a.Unsized, v.Name)
		return val
	}
	bytes, ok := onnx.TensorOf(t.DType, onnx.StaticShape(dims...)).Bytes()
	if !ok {
		a.Unsized = append(a.Unsized, v.Name)
		return val
	}
	key := fmt.Sprint(t.DType.Bits(), dims)
	class, ok := a.classes[key]
	if !ok {
		class = len(a.classes)
		a.classes[key] = class
	}
	val.Bytes, val.Class, val.Scalar = bytes, class, len(dims) == 0
	return val
}
