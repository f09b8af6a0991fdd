package lower

// ONNX Runtime's optimizers update whole sequences of tensors in one node,
// whose length the file does not say. In ordinary operators that is a Loop over
// the elements:
//
//	for i < SequenceLength(params):  w, g, m, v = the i-th of each
//	    m' = αm + (1-α)g      v' = βv + (1-β)g²
//	    w' = the new weight   append w', m', v'
//
// The private operator writes into its inputs; here the new sequences are
// outputs. Step counts from 1.

import (
	"errors"
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// adamW covers both modes: 0, as PyTorch, decays before the update and divides
// by √(v/correction); 1, as Hugging Face, decays after it and moves the
// correction into the rate.
func adamW(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	if n.In(6) != nil {
		return nil, errors.New("its update signal is not supported")
	}
	c := p.emit.Context(n)
	one := func(x float64) *onnx.Value { return c.Const(onnx.FloatTensor(onnx.Float32, []float64{x})) }
	alpha, beta := n.Float("alpha", 0.9), n.Float("beta", 0.999)
	eps, decay := n.Float("epsilon", 1e-8), n.Float("weight_decay", 1e-2)
	scalar := func(v *onnx.Value) *onnx.Value { return c.Do("Reshape", v, c.IntList()) }
	rate := scalar(n.In(0))
	keep := c.Minus(one(1), c.Scale(rate, decay))
	spread := one(1)
	if n.Int("correct_bias", 1) != 0 {
		step := c.CastTo(scalar(n.In(1)), rate)
		first := c.Minus(one(1), c.Do("Pow", one(alpha), step))
		second := c.Minus(one(1), c.Do("Pow", one(beta), step))
		rate = c.Over(rate, first)
		if n.Int("adam_mode", 0) == 0 {
			spread = c.Do("Reciprocal", second)
		} else {
			rate = c.Times(rate, c.Do("Sqrt", second))
		}
	}
	if err := p.b.Err(); err != nil {
		return nil, err
	}
	l := newLoop(c, n.In(2))
	w, g, m, v := l.element(n.In(2)), l.element(n.In(3)), l.element(n.In(4)), l.element(n.In(5))
	m2 := l.op("Add", l.op("Mul", m, l.use(one(alpha))), l.op("Mul", g, l.use(one(1-alpha))))
	v2 := l.op("Add", l.op("Mul", v, l.use(one(beta))), l.op("Mul", l.op("Mul", g, g), l.use(one(1-beta))))
	root := l.op("Add", l.op("Sqrt", l.op("Mul", v2, l.use(spread))), l.use(one(eps)))
	change := l.op("Div", l.op("Mul", m2, l.use(rate)), root)
	var w2 string
	if n.Int("adam_mode", 0) == 0 {
		w2 = l.op("Sub", l.op("Mul", w, l.use(keep)), change)
	} else {
		w2 = l.op("Mul", l.op("Sub", w, change), l.use(keep))
	}
	return p.sequences(n, l, []string{w2, m2, v2}, []int{2, 4, 5})
}

// sgd is w' = w - lr*g.
func sgd(p *pass, n *onnx.Node) ([]*onnx.Value, error) {
	if n.In(3) != nil {
		return nil, errors.New("its update signal is not supported")
	}
	c := p.emit.Context(n)
	rate := c.Do("Reshape", n.In(0), c.IntList())
	if err := p.b.Err(); err != nil {
		return nil, err
	}
	l := newLoop(c, n.In(1))
	w2 := l.op("Sub", l.element(n.In(1)), l.op("Mul", l.element(n.In(2)), l.use(rate)))
	return p.sequences(n, l, []string{w2}, []int{1})
}

// sequences closes the loop. Updated sequences that the node did not return
// become outputs of the graph, INPUT.new.
func (p *pass) sequences(n *onnx.Node, l *loop, results []string, inputs []int) ([]*onnx.Value, error) {
	flag := onnx.NewTensor(onnx.Bool, []int64{1}, []byte{1})
	if o := n.Out(0); o != nil && o.Type.DType == onnx.Int64 {
		flag = onnx.Int64Tensor([]int64{1}, 1)
	}
	made := l.close(results, inputs, n)
	if made == nil {
		return nil, p.b.Err()
	}
	outs := []*onnx.Value{l.c.Do("Identity", l.c.Const(flag))}
	for k, v := range made {
		outs = append(outs, v)
		if n.Out(k+1) == nil {
			p.g.Rename(v, p.g.FreshValueName(n.In(inputs[k]).Name+".new"))
			p.g.AddOutput(v)
		}
	}
	return outs, p.b.Err()
}

// A loop is a Loop node whose body is being written.
type loop struct {
	c      *grad.Context
	length *onnx.Value
	body   *onnxpb.GraphProto
	names  int
}

const (
	loopIndex = "remat/lower/i"
	loopGoOn  = "remat/lower/go_on"
)

func newLoop(c *grad.Context, over *onnx.Value) *loop {
	return &loop{c: c, length: c.Do("SequenceLength", over), body: &onnxpb.GraphProto{Name: new("remat/lower/body")}}
}

// use names an outer value inside the body.
func (l *loop) use(v *onnx.Value) string {
	if v == nil {
		return ""
	}
	return v.Name
}

// element is the i-th of an outer sequence.
func (l *loop) element(seq *onnx.Value) string { return l.op("SequenceAt", l.use(seq), loopIndex) }

// op adds a node to the body and returns its output's name.
func (l *loop) op(op string, inputs ...string) string {
	out := l.name(op)
	l.body.Node = append(l.body.Node, &onnxpb.NodeProto{OpType: &op, Name: new(out), Input: inputs, Output: []string{out}})
	return out
}

// name is one that neither the body nor the graph has.
func (l *loop) name(base string) string {
	l.names++
	return l.c.FreshName(fmt.Sprintf("remat/lower/body/%d/%s", l.names, base))
}

// close adds the appending of results to the body and the Loop to the graph; it
// returns the new sequences, typed as the given inputs of n.
func (l *loop) close(results []string, inputs []int, n *onnx.Node) []*onnx.Value {
	scalar := func(name string, d onnx.DType) *onnxpb.ValueInfoProto {
		return &onnxpb.ValueInfoProto{Name: &name, Type: onnx.TensorOf(d, onnx.Shape{}).Proto()}
	}
	goOn := l.op("Identity", loopGoOn)
	l.body.Input = append(l.body.Input, scalar(loopIndex, onnx.Int64), scalar(loopGoOn, onnx.Bool))
	l.body.Output = append(l.body.Output, scalar(goOn, onnx.Bool))
	in := []*onnx.Value{l.length, l.c.Const(onnx.NewTensor(onnx.Bool, nil, []byte{1}))}
	for k, r := range results {
		carried := l.name("carried")
		t := sequenceType(n.In(inputs[k])).Proto()
		l.body.Input = append(l.body.Input, &onnxpb.ValueInfoProto{Name: &carried, Type: t})
		next := l.op("SequenceInsert", carried, r)
		l.body.Output = append(l.body.Output, &onnxpb.ValueInfoProto{Name: &next, Type: t})
		in = append(in, l.c.Do("SequenceEmpty"))
	}
	attr := onnxpb.AttributeProto{Type: onnxpb.AttributeProto_GRAPH.Enum(), G: l.body}
	attr.Name = new("body")
	made := l.c.Nodes("", "Loop", in, len(results), &attr)
	for k, v := range made {
		if v == nil {
			return nil
		}
		v.Type = sequenceType(n.In(inputs[k]))
	}
	return made
}

// sequenceType is the type of a sequence of weights: as declared, or of float32
// tensors, the only ones that the optimizers have kernels for.
func sequenceType(v *onnx.Value) onnx.Type {
	if v.Type.Other != nil {
		return v.Type
	}
	element := &onnxpb.TypeProto_Tensor{ElemType: new(int32)}
	*element.ElemType = int32(onnx.Float32)
	tensor := &onnxpb.TypeProto{Value: &onnxpb.TypeProto_TensorType{TensorType: element}}
	return onnx.Type{Other: &onnxpb.TypeProto{Value: &onnxpb.TypeProto_SequenceType{SequenceType: &onnxpb.TypeProto_Sequence{ElemType: tensor}}}}
}
