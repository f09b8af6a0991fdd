package tile

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// A batchNet grows a random step: operators that move, merge, split, join and contract axes, over
// feeds of which some have the batch as their first axis, where other extents are often the
// batch's, too. Weights are parameters, feeds, or what the net has made already.
type batchNet struct {
	*rand.Rand
	m      *onnx.Model
	b      *build.Builder
	made   []*onnx.Value
	labels *onnx.Value
	feeds  int
}

func extentsOf(v *onnx.Value) []int64 {
	d, _ := v.Type.Shape.Ints()
	return slices.Clone(d)
}

func (n *batchNet) op(op string, in []*onnx.Value, attrs ...onnx.Attribute) *onnx.Value {
	return n.b.Op(op, in, attrs...)
}

// mostElements bounds a value.
const mostElements = 3000

// keep lets later operators read v.
func (n *batchNet) keep(values ...*onnx.Value) {
	for _, v := range values {
		if n.b.Err() != nil || v == nil {
			return
		}
		if count, _ := v.Type.Shape.Elements().Int(); count > 0 && count < mostElements {
			n.made = append(n.made, v)
		}
	}
}

// pick draws what was made, often the last.
func (n *batchNet) pick() *onnx.Value {
	if n.IntN(2) == 0 {
		return n.made[len(n.made)-1]
	}
	return n.made[n.IntN(len(n.made))]
}

// like draws a value whose extents are allowed, nil where none is found soon.
func (n *batchNet) like(allowed func([]int64) bool) *onnx.Value {
	for range 8 {
		if v := n.pick(); allowed(extentsOf(v)) {
			return v
		}
	}
	return nil
}

func (n *batchNet) feed(dims ...int64) *onnx.Value {
	n.feeds++
	return n.m.Graph.AddInput(fmt.Sprintf("feed%d", n.feeds), onnx.TensorOf(onnx.Float32, onnx.StaticShape(dims...)))
}

func (n *batchNet) weight(dims ...int64) *onnx.Value {
	switch n.IntN(5) {
	case 0:
		if len(dims) > 0 {
			return n.feed(dims...)
		}
	case 1:
		if v := n.like(func(d []int64) bool { return slices.Equal(d, dims) }); v != nil {
			return v
		}
	}
	count, _ := onnx.Elements(dims)
	values := make([]float64, count)
	for i := range values {
		values[i] = float64(n.IntN(17)-8) / 8
	}
	return n.m.Graph.AddConstant("w", onnx.FloatTensor(onnx.Float32, values, dims...))
}

// factors draws extents whose product is count.
func (n *batchNet) factors(count int64) []int64 {
	list := []int64{}
	for count > 1 {
		d := 2 + n.Int64N(count-1)
		for count%d != 0 {
			d = 2 + n.Int64N(count-1)
		}
		list = append(list, d)
		count /= d
	}
	return append(list, count)
}

// spatial reports what convolutions and pools take.
func spatial(d []int64) bool { return len(d) == 3 || len(d) == 4 }

// growths are what a step may do with a value v of extents d, along an axis of it.
var growths = []func(n *batchNet, v *onnx.Value, d []int64, axis int){
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // two axes become one
		if axis+1 < len(d) {
			d[axis] *= d[axis+1]
			n.keep(n.op("Reshape", build.In(v, n.b.Ints(slices.Delete(d, axis+1, axis+2)...))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // one axis becomes several
		if len(d) < 5 {
			n.keep(n.op("Reshape", build.In(v, n.b.Ints(slices.Concat(d[:axis], n.factors(d[axis]), d[axis+1:])...))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		count, _ := onnx.Elements(d)
		n.keep(n.op("Reshape", build.In(v, n.b.Ints(n.factors(count)...))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		n.keep(n.op("Transpose", build.In(v), build.PermAttr(n.Perm(len(d))...)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		n.keep(n.op([]string{"Tanh", "Sigmoid", "Neg", "Relu"}[n.IntN(4)], build.In(v)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		w := n.like(func(e []int64) bool {
			for i := 1; i <= min(len(e), len(d)); i++ {
				if a, b := d[len(d)-i], e[len(e)-i]; a != b && a != 1 && b != 1 {
					return false
				}
			}
			return true
		})
		if w != nil {
			n.keep(n.op([]string{"Add", "Mul", "Sub"}[n.IntN(3)], build.In(v, w)))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		e := d[axis:]
		if n.IntN(2) == 0 {
			e[0] = 1
		}
		n.keep(n.op("Mul", build.In(v, n.weight(e...))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if len(d) > 1 {
			y := n.op("MatMul", build.In(v, n.weight(d[len(d)-1], 2+n.Int64N(5))))
			n.keep(n.op("Add", build.In(y, n.weight(1))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // attention of v to itself
		if last := len(d) - 1; last > 0 {
			perm := make([]int, len(d))
			for i := range perm {
				perm[i] = i
			}
			perm[last], perm[last-1] = last-1, last
			s := n.op("MatMul", build.In(v, n.op("Transpose", build.In(v), build.PermAttr(perm...))))
			n.keep(n.op("MatMul", build.In(n.op("Softmax", build.In(s)), v)))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		n.keep(n.op([]string{"Softmax", "LogSoftmax"}[n.IntN(2)], build.In(v), onnx.IntAttr("axis", int64(axis))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if len(d) > 1 {
			op := []string{"ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceL2"}[n.IntN(5)]
			n.keep(n.op(op, build.In(v, n.b.Ints(int64(axis))), onnx.IntAttr("keepdims", n.Int64N(2))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if d[axis] > 1 {
			n.keep(n.op("Slice", build.In(v, n.b.Ints(n.Int64N(d[axis]-1)), n.b.Ints(d[axis]), n.b.Ints(int64(axis)))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		w := n.like(func(e []int64) bool {
			return len(e) == len(d) && slices.Equal(slices.Delete(e, axis, axis+1), slices.Delete(slices.Clone(d), axis, axis+1))
		})
		if w == nil {
			w = n.weight(d...)
		}
		n.keep(n.op("Concat", build.In(v, w), onnx.IntAttr("axis", int64(axis))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if d[axis]%2 == 0 {
			n.keep(n.b.Node("", "Split", build.In(v), 2, onnx.IntAttr("axis", int64(axis)), onnx.IntAttr("num_outputs", 2))...)
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // all in their order, or others
		list := make([]int64, d[axis]+n.Int64N(2))
		for i := range list {
			list[i] = int64(i) % d[axis]
			if len(list) > int(d[axis]) {
				list[i] = n.Int64N(d[axis])
			}
		}
		n.keep(n.op("Gather", build.In(v, n.b.Ints(list...)), onnx.IntAttr("axis", int64(axis))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		n.keep(n.op("Gather", build.In(n.weight(labelBound, 2+n.Int64N(3)), n.labels)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // the mean of those whose label counts
		counts := n.op("Not", build.In(n.op("Equal", build.In(n.labels, n.b.Ints(3)))))
		f := n.op("Cast", build.In(counts), onnx.IntAttr("to", int64(onnx.Float32)))
		sum := n.op("Add", build.In(n.op("ReduceSum", build.In(f), onnx.IntAttr("keepdims", 0)), n.b.Scalar(onnx.Float32, 1)))
		n.keep(f, n.op("Div", build.In(v, sum)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if !spatial(d) {
			return
		}
		groups := int64(1)
		if d[1]%2 == 0 {
			groups = []int64{1, 2, d[1]}[n.IntN(3)]
		}
		out, w := groups*(1+n.Int64N(2)), slices.Clone(d)
		for i := 2; i < len(w); i++ {
			w[i] = min(2, w[i])
		}
		if n.IntN(3) == 0 {
			w[0], w[1] = d[1], out/groups
			n.keep(n.op("ConvTranspose", build.In(v, n.weight(w...), n.weight(out)), onnx.IntAttr("group", groups)))
			return
		}
		w[0], w[1] = out, d[1]/groups
		n.keep(n.op("Conv", build.In(v, n.weight(w...), n.weight(out)), onnx.IntAttr("group", groups)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if !spatial(d) {
			return
		}
		k := d[2:]
		for i := range k {
			k[i] = min(2, k[i])
		}
		n.keep(n.op([]string{"MaxPool", "AveragePool"}[n.IntN(2)], build.In(v), onnx.IntsAttr("kernel_shape", k...), onnx.IntsAttr("strides", k...)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if spatial(d) {
			n.keep(n.op("InstanceNormalization", build.In(v, n.weight(d[1]), n.weight(d[1]))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		n.keep(n.op("LayerNormalization", build.In(v, n.weight(d[len(d)-1]))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if len(d) != 3 {
			return
		}
		kind, h := n.IntN(3), 2+n.Int64N(3)
		gates := []int64{4, 3, 1}[kind] * h
		in := build.In(v, n.weight(2, gates, d[2]), n.weight(2, gates, h), n.weight(2, 2*gates), nil, n.weight(2, d[1], h))
		n.keep(n.b.Node("", []string{"LSTM", "GRU", "RNN"}[kind], in, 2, onnx.IntAttr("hidden_size", h), onnx.StringAttr("direction", "bidirectional"))...)
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		n.keep(n.op("CumSum", build.In(v, n.b.Const(onnx.Int64Tensor([]int64{int64(axis)})))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		n.keep(n.b.Node("", "TopK", build.In(v, n.b.Ints(1+n.Int64N(d[axis]))), 2, onnx.IntAttr("axis", int64(axis)))[0])
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		if len(d) < 5 {
			y := n.op("Unsqueeze", build.In(v, n.b.Ints(int64(axis))))
			n.keep(y, n.op("Expand", build.In(y, n.b.Ints(slices.Insert(d, axis, 3)...))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // chosen, and put elsewhere
		depth := 1 + n.IntN(min(2, len(d)))
		from, to := n.places(d[:depth]), n.places(d[:depth])
		y := n.op("GatherND", build.In(v, from))
		table := n.like(func(e []int64) bool { return slices.Equal(e, d) })
		if table == nil || n.IntN(2) == 0 {
			table = n.weight(d...)
		}
		n.keep(y, n.op("ScatterND", build.In(table, to, y), onnx.StringAttr("reduction", []string{"none", "add"}[n.IntN(2)])))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		last := n.op("Unsqueeze", build.In(n.labels, n.b.Ints(2)))
		n.keep(n.op("GatherND", build.In(n.weight(labelBound, 2+n.Int64N(3)), last)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // a row of each sample, or now and then of another
		if len(d) < 2 {
			return
		}
		list := make([]int64, d[0])
		for i := range list {
			list[i] = int64(i)*d[1] + n.Int64N(d[1])
		}
		if n.IntN(4) == 0 {
			n.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		}
		all := d[0] * d[1]
		if n.IntN(2) == 0 {
			list[0] -= all
		}
		rows := n.op("Reshape", build.In(v, n.b.Ints(append([]int64{all}, d[2:]...)...)))
		n.keep(rows, n.op("Gather", build.In(rows, n.b.Ints(list...))))
		if n.IntN(2) == 0 {
			n.keep(n.op("Slice", build.In(rows, n.b.Ints(n.Int64N(d[1])), n.b.Ints(all), n.b.Ints(0), n.b.Ints(d[1]))))
		}
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // a row that each sample finds
		if len(d) != 3 {
			return
		}
		most := n.op("ReduceMax", build.In(v, n.b.Ints(2)), onnx.IntAttr("keepdims", 0))
		found := n.op("ArgMax", build.In(most), onnx.IntAttr("axis", 1), onnx.IntAttr("keepdims", 0))
		first := make([]int64, d[0])
		for i := range first {
			first[i] = int64(i) * d[1]
		}
		rows := n.op("Reshape", build.In(v, n.b.Ints(d[0]*d[1], d[2])))
		n.keep(n.op("Gather", build.In(rows, n.op("Add", build.In(found, n.b.Ints(first...))))))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) { // the mean of those whose label counts, where all are constants
		list := make([]int64, d[0])
		for i := range list {
			list[i] = n.Int64N(3)
		}
		counts := n.op("Not", build.In(n.op("Equal", build.In(n.b.Ints(list...), n.b.Ints(1)))))
		f := n.op("Cast", build.In(counts), onnx.IntAttr("to", int64(onnx.Float32)))
		sum := n.op("Add", build.In(n.op("ReduceSum", build.In(f), onnx.IntAttr("keepdims", 0)), n.b.Scalar(onnx.Float32, 1)))
		shape := slices.Repeat([]int64{1}, len(d))
		shape[0] = d[0]
		weights := n.op("Reshape", build.In(f, n.b.Ints(shape...)))
		n.keep(n.op("Div", build.In(n.op("Mul", build.In(v, weights)), sum)))
	},
	func(n *batchNet, v *onnx.Value, d []int64, axis int) {
		times := slices.Repeat([]int64{1}, len(d))
		times[axis] = 2
		n.keep(n.op("Tile", build.In(v, n.b.Ints(times...))))
	},
}

// places are two places among these extents, as constants, or one where there is no other.
func (n *batchNet) places(d []int64) *onnx.Value {
	count, _ := onnx.Elements(d)
	first := n.Int64N(count)
	rows := []int64{first}
	if count > 1 {
		rows = append(rows, (first+1+n.Int64N(count-1))%count)
	}
	var list []int64
	for _, row := range rows {
		at := make([]int64, len(d))
		for i := len(d) - 1; i >= 0; i-- {
			at[i], row = row%d[i], row/d[i]
		}
		list = append(list, at...)
	}
	return n.b.Const(onnx.Int64Tensor(list, int64(len(rows)), int64(len(d))))
}

// randomBatch makes a random step and its batch; nothing where it trains nothing.
func randomBatch(t *testing.T, seed uint64) (*onnx.Model, int64) {
	t.Helper()
	n := &batchNet{Rand: rand.New(rand.NewPCG(seed, 77)), m: onnx.NewModel("random", 20)}
	types, err := infer.Model(n.m, infer.Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	n.b = build.New(n.m.Graph, types, "")
	batch := []int64{2, 4, 6}[n.IntN(3)]
	extent := func() int64 { return []int64{2, 3, 4, batch}[n.IntN(4)] }
	x := n.feed([]int64{batch, extent(), extent(), extent()}[:2+n.IntN(3)]...)
	n.labels = n.m.Graph.AddInput("labels", onnx.TensorOf(onnx.Int64, onnx.StaticShape(batch, extent())))
	d := extentsOf(x)
	n.keep(n.op("Mul", build.In(x, n.m.Graph.AddConstant("w", onnx.FloatTensor(onnx.Float32, []float64{-0.5}, 1)))))
	n.keep(n.op("Add", build.In(n.pick(), n.weight(d[len(d)-1]))))
	for range 4 + n.IntN(14) {
		v := n.pick()
		if d := extentsOf(v); len(d) > 0 {
			k := n.IntN(len(growths)+6) % len(growths) // views twice as often
			growths[k](n, v, d, n.IntN(len(d)))
		}
	}
	var terms []*onnx.Value
	for _, v := range build.In(n.made[len(n.made)-1], n.pick()) {
		terms = append(terms, n.op([]string{"ReduceMean", "ReduceSum"}[n.IntN(2)], build.In(n.op("Mul", build.In(v, v))), onnx.IntAttr("keepdims", 0)))
	}
	loss := n.op("Add", terms)
	if err := n.b.Err(); err != nil {
		t.Fatal(err)
	}
	n.b.Flush()
	n.m.Graph.AddOutput(loss)
	if _, err := grad.Differentiate(n.m, grad.Options{}); err != nil {
		return nil, 0
	}
	return n.m, batch
}

// TestRandomBatches: whatever step is drawn, its gradients in parts are the whole one's, or it is
// left whole.
func TestRandomBatches(t *testing.T) {
	divided, stretched, counted := 0, 0, 0
	for seed := range uint64(800) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			was, batch := randomBatch(t, seed)
			if was == nil {
				return
			}
			m, err := was.Clone()
			if err != nil {
				t.Fatal(err)
			}
			types, err := infer.Model(m, infer.Options{})
			if err != nil {
				t.Fatal(err)
			}
			var feeds []*onnx.Value
			for _, v := range m.Graph.Inputs {
				if m.Graph.Value(v.Name+".grad") == nil && v.Type.Shape[0].Is(batch) {
					feeds = append(feeds, v)
				}
			}
			r, err := Batch(m, feeds, 0)
			var skip *SkipError
			switch {
			case errors.As(err, &skip):
				return
			case err != nil:
				t.Fatal(err)
			case r.Parts(2) < 2:
				return
			}
			divided++
			if len(r.counted) > 0 {
				counted++
			}
			if len(r.stretches) > 0 {
				stretched++
			}
			if err := r.Apply(types, r.Parts(2+int(seed%2))); err != nil {
				t.Fatalf("%v in\n%s", err, was.Text())
			}
			sameGradients(t, was, m)
		})
	}
	if divided < 200 || stretched < 20 || counted < 5 {
		t.Errorf("%d steps are divided, %d of them with a batch in stretches, and %d at places of each sample", divided, stretched, counted)
	}
}

// sameGradients compares what both return, relative to the largest number of all: what cancels
// has no digits of its own.
func sameGradients(t *testing.T, was, is *onnx.Model) {
	t.Helper()
	in := inputs(was, rand.New(rand.NewPCG(5, 11)))
	want, got := ortest.Run(t, was, 0, in), ortest.Run(t, is, 0, in)
	scale := 0.0
	for _, x := range want {
		for _, f := range x {
			if !math.IsNaN(f) && !math.IsInf(f, 0) {
				scale = max(scale, math.Abs(f))
			}
		}
	}
	for name, x := range want {
		if at := differs(x, got[name], false); at >= 0 && !(math.Abs(x[at]-at1(got[name], at)) < 1e-4*scale) {
			t.Errorf("output %s differs at %d: %v, was %v, in\n%s", name, at, at1(got[name], at), x[at], was.Text())
		}
	}
}
