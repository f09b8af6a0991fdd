package analysis

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// tell finds the types that values have where data alone tells some. The graph's own types
// stay: what is written of them would hold for that data only.
func (a *Analysis) tell(m *onnx.Model) error {
	if len(a.opts.Shapes) == 0 {
		return nil
	}
	types, err := infer.Types(m, infer.Options{Dims: a.opts.Dims, Shapes: a.opts.Shapes})
	a.told = types
	return err
}

// typeOf is a value's type, as told where data tells it.
func (a *Analysis) typeOf(v *onnx.Value) onnx.Type {
	if t, ok := a.told[v]; ok {
		return t
	}
	return v.Type
}

// extents returns a value's shape in numbers; false where it is not known.
// Free dimensions take their number from the options, or 1.
func (a *Analysis) extents(v *onnx.Value) ([]int64, bool) {
	if v == nil {
		return nil, false
	}
	typ := a.typeOf(v)
	if !typ.Ranked {
		return nil, false
	}
	dims := make([]int64, len(typ.Shape))
	for i, d := range typ.Shape {
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
