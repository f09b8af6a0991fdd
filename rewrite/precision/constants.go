package precision

// Constants that half cannot hold. A mask of -3.4e38 stands for "nothing" and
// becomes half the lowest finite number, so that adding a score to it does not
// overflow. Other large constants, and those that hold nothing but numbers such as 1e-12, which
// would vanish, keep what they go into in float32.

import (
	"math"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// fit says how a constant fails to fit.
type fit struct{ value float64 }

// limits of the half types: the largest number, and the smallest normal one.
func (p *pass) limits() (largest, smallest float64) {
	if p.o.To == onnx.BFloat16 {
		return 0x1.fep127, 0x1p-126
	}
	return 65504, 0x1p-14
}

// constantOf is the constant that a value is, nil for others.
func constantOf(v *onnx.Value) *onnx.Tensor {
	if v.Producer != nil && v.Producer.Is("ConstantOfShape") {
		return v.Producer.TensorAttr("value")
	}
	return v.Constant()
}

// fitOf says what does not fit of a float32 constant; nil for one that does.
func (p *pass) fitOf(v *onnx.Value) *fit {
	if v == nil || !isFloat(v) {
		return nil
	}
	if f, done := p.unfits[v]; done {
		return f
	}
	p.unfits[v] = nil
	t := constantOf(v)
	if t == nil || t.DType() != onnx.Float32 {
		return nil
	}
	data, err := t.Float64s()
	if err != nil {
		return nil
	}
	largest, smallest := p.limits()
	most := 0.0
	for _, x := range data {
		if math.IsInf(x, 0) || math.Abs(x) > math.Abs(most) {
			most = x
		}
		if math.Abs(x) > largest && !math.IsInf(x, 0) {
			p.unfits[v] = &fit{x}
			return p.unfits[v]
		}
	}
	if most != 0 && math.Abs(most) < smallest {
		p.unfits[v] = &fit{most}
	}
	return p.unfits[v]
}

func follows(n *onnx.Node) bool {
	t, ok := traits.Of(n)
	return ok && (t.Precision == traits.Follow || t.Precision == traits.Inside)
}

// masking is the magnitude from which a constant means "nothing here".
const masking = 1e30

// strange reports that n reads a constant that does not fit, or what such a
// constant went into.
func (p *pass) strange(n *onnx.Node, odd map[*onnx.Value]bool) bool {
	if !follows(n) {
		return false
	}
	for i, v := range n.Inputs {
		if !in(n, i) {
			continue
		}
		if odd[v] {
			return true
		}
		if f := p.fitOf(v); f != nil && math.Abs(f.value) < masking {
			if p.verdicts[n].kind != half {
				p.note(v, f.value, "its reader stays in float32")
			}
			return true
		}
	}
	return false
}

func (p *pass) note(v *onnx.Value, x float64, done string) {
	for _, c := range p.report.Constants {
		if c.Name == v.Name && c.Done == done {
			return
		}
	}
	p.report.Constants = append(p.report.Constants, Constant{v.Name, x, done})
}

// round is x in the half type.
func (p *pass) round(x float64) float64 {
	y, _ := onnx.FloatTensor(p.o.To, []float64{x}).Scalar()
	return y
}

// clamped are a constant's elements, finite ones kept finite.
func (p *pass) clamped(v *onnx.Value) []float64 {
	data, err := v.Init.Float64s()
	if err != nil {
		p.b.Fail(err)
		return nil
	}
	largest, _ := p.limits()
	copied := make([]float64, len(data))
	for i, x := range data {
		if copied[i] = x; math.Abs(x) > largest && !math.IsInf(x, 0) {
			copied[i] = math.Copysign(largest/2, x)
		}
	}
	if f := p.fitOf(v); f != nil {
		done := "rounded to half"
		if math.Abs(f.value) > largest {
			done = "clamped to half the largest half number"
		}
		p.note(v, f.value, done)
	}
	return copied
}

func (p *pass) halfConstant(v *onnx.Value) *onnx.Value {
	data := p.clamped(v)
	if data == nil && p.b.Err() != nil {
		return v
	}
	return p.g.AddConstant("remat/cast/"+v.Name+"/half", onnx.FloatTensor(p.o.To, data, v.Init.Dims()...))
}

// roundedConstant is a float32 constant with half's numbers.
func (p *pass) roundedConstant(v *onnx.Value) *onnx.Value {
	data := p.clamped(v)
	same := true
	for i, x := range data {
		data[i] = p.round(x)
		same = same && data[i] == x
	}
	if same && p.fitOf(v) == nil {
		return v
	}
	return p.g.AddConstant("remat/cast/"+v.Name+"/float", onnx.FloatTensor(onnx.Float32, data, v.Init.Dims()...))
}
