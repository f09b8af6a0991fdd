package grad

// Gradients while their contributions arrive: what adds up at once, and what
// waits until the value's producer is reached.

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A partial is the gradient of one value while contributions arrive.
type partial struct {
	dense *onnx.Value
	// factor, where there is one, is still to be multiplied onto dense: a
	// number, or one a row (of dense's shape but for a last extent of one). The
	// gradient of a cross entropy carries its samples' weights like that, so
	// that a product can put them on its small operand.
	factor   *onnx.Value
	slices   []slicePart
	scatters []scatterPart
}

// A slicePart is the gradient of v[start:end] along axis.
type slicePart struct {
	axis       int
	start, end int64
	grad       *onnx.Value
}

// A scatterPart is the gradient of the rows of v that indices name along axis;
// indices and grad have the same shape. Where flat is not zero, they are
// matrices, and v is to be taken as one: its first flat axes as one, and the
// others.
type scatterPart struct {
	axis          int
	indices, grad *onnx.Value
	flat          int
}

// moved puts v in the place of a forward value that is itself what has arrived
// somewhere: in y = x*w the gradient of w is x where that of y is one.
func (e *engine) moved(from, v *onnx.Value) {
	put := func(at **onnx.Value) {
		if *at == from {
			*at = v
		}
	}
	for _, p := range e.grads {
		put(&p.dense)
		put(&p.factor)
		for i := range p.slices {
			put(&p.slices[i].grad)
		}
		for i := range p.scatters {
			put(&p.scatters[i].grad)
			put(&p.scatters[i].indices)
		}
	}
}

func (e *engine) partialOf(v *onnx.Value) *partial {
	p := e.grads[v]
	if p == nil {
		p = &partial{}
		e.grads[v] = p
	}
	return p
}

// addDense adds a contribution of v's shape, or one that broadcasts to it.
func (e *engine) addDense(v, g *onnx.Value) {
	p := e.partialOf(v)
	if p.dense == nil {
		p.dense = g
		return
	}
	e.multiplyOut(p)
	p.dense = e.b.Op("Add", build.In(p.dense, g))
}

// addFactored adds a contribution that is g times factor; see partial.
func (e *engine) addFactored(v, g, factor *onnx.Value) {
	p := e.partialOf(v)
	if p.dense == nil && len(p.slices) == 0 && len(p.scatters) == 0 {
		p.dense, p.factor = g, factor
		return
	}
	e.addDense(v, e.b.Op("Mul", build.In(g, factor)))
}

func (e *engine) multiplyOut(p *partial) {
	if p.factor != nil {
		p.dense, p.factor = e.b.Op("Mul", build.In(p.dense, p.factor)), nil
	}
}

// accumulateFactored is accumulate, but leaves a factor for the caller to apply.
func (e *engine) accumulateFactored(v *onnx.Value) (g, factor *onnx.Value) {
	if p := e.grads[v]; p != nil && len(p.slices) == 0 && len(p.scatters) == 0 {
		return p.dense, p.factor
	}
	return e.accumulate(v), nil
}

// accumulate folds everything that arrived for v into one value, which may still
// be one that broadcasts to v's shape. It returns nil where nothing arrived.
func (e *engine) accumulate(v *onnx.Value) *onnx.Value {
	p := e.grads[v]
	if p == nil {
		return nil
	}
	e.multiplyOut(p)
	for len(p.slices) > 0 {
		e.addDense(v, e.assembleSlices(v, p))
	}
	if len(p.scatters) > 0 {
		if p.dense == nil {
			p.dense = e.zerosAfter(v, p.scatters[0].indices, sumType(v.Type.DType))
		}
		p.dense = e.expandTo(p.dense, v)
		for _, s := range p.scatters {
			into := p.dense
			if s.flat > 0 {
				into = e.flat(into, s.flat)
			}
			p.dense = e.scatterAdd(into, s.indices, s.grad, s.axis)
			if s.flat > 0 {
				p.dense = e.reshapeLike(p.dense, v)
			}
		}
		p.scatters = nil
	}
	return p.dense
}

// assembleSlices takes the slices along the first one's axis that do not
// overlap off p's list and lays them side by side, zeros between them.
func (e *engine) assembleSlices(v *onnx.Value, p *partial) *onnx.Value {
	axis := p.slices[0].axis
	var row, rest []slicePart
next:
	for _, s := range p.slices {
		if s.axis != axis {
			rest = append(rest, s)
			continue
		}
		for i, t := range row {
			if s.start < t.end && t.start < s.end {
				rest = append(rest, s)
				continue next
			}
			if s.end <= t.start {
				row = append(row[:i:i], append([]slicePart{s}, row[i:]...)...)
				continue next
			}
		}
		row = append(row, s)
	}
	p.slices = rest
	size, ok := v.Type.Shape[axis].Int()
	if !ok {
		size = -1
	}
	return e.layOut(v, axis, size, row)
}

// layOut concatenates sorted, disjoint slices along axis to the extent size.
// A single slice is padded, which needs no buffer of zeros.
func (e *engine) layOut(v *onnx.Value, axis int, size int64, row []slicePart) *onnx.Value {
	if len(row) == 1 {
		s := row[0]
		if s.start == 0 && s.end == size {
			return s.grad
		}
		rank := len(v.Type.Shape)
		pads := make([]int64, 2*rank)
		pads[axis], pads[rank+axis] = s.start, size-s.end
		return e.b.Op("Pad", build.In(s.grad, e.b.Ints(pads...)))
	}
	if !e.fillable(v, axis, size, row) {
		sum := e.layOut(v, axis, size, row[:1])
		for i := 1; i < len(row); i++ {
			sum = e.b.Op("Add", build.In(sum, e.layOut(v, axis, size, row[i:i+1])))
		}
		return sum
	}
	var parts []*onnx.Value
	at := int64(0)
	gap := func(to int64) {
		if to > at {
			shape := append(onnx.Shape(nil), v.Type.Shape...)
			shape[axis] = onnx.Static(to - at)
			parts = append(parts, e.filled(shape, v.Type.DType, 0))
		}
	}
	for _, s := range row {
		gap(s.start)
		parts = append(parts, s.grad)
		at = s.end
	}
	gap(size)
	return e.b.Op("Concat", parts, onnx.IntAttr("axis", int64(axis)))
}

// fillable reports slices without gaps, or whose gaps can be made of zeros.
func (e *engine) fillable(v *onnx.Value, axis int, size int64, row []slicePart) bool {
	at, whole := int64(0), true
	for _, s := range row {
		whole = whole && s.start == at
		at = s.end
	}
	if whole && at == size {
		return true
	}
	shape := append(onnx.Shape(nil), v.Type.Shape...)
	shape[axis] = onnx.Static(1)
	return e.shapeValue(shape) != nil
}
