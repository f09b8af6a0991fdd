package predict

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A grower makes a random graph node by node. Values are drawn near the end,
// so that chains form, and now and then from anywhere, so that values are
// shared and live long.
type grower struct {
	r *rand.Rand
	m *onnx.Model
	b *build.Builder
	// floats are usable as operands.
	floats []*onnx.Value
	made   int
	dtype  onnx.DType
}

var growShapes = [][]int64{{4, 6}, {2, 3, 4}, {4, 6}, {6}, {2, 3, 4}, {4, 1}, {}, {2, 4, 6}}

func newGrower(seed uint64) *grower { return newTypedGrower(seed, onnx.Float32) }

func newTypedGrower(seed uint64, dtype onnx.DType) *grower {
	g := &grower{r: rand.New(rand.NewPCG(seed, 77)), m: onnx.NewModel("random", 18), dtype: dtype}
	types, err := infer.Model(g.m, infer.Options{Strict: true})
	if err != nil {
		panic(err)
	}
	g.b = build.New(g.m.Graph, types, "")
	for i := range 2 + g.r.IntN(3) {
		s := growShapes[g.r.IntN(len(growShapes))]
		g.floats = append(g.floats, g.m.Graph.AddInput(fmt.Sprintf("x%d", i), onnx.TensorOf(dtype, onnx.StaticShape(s...))))
	}
	for range g.r.IntN(3) {
		s := growShapes[g.r.IntN(len(growShapes))]
		n, _ := onnx.Elements(s)
		g.floats = append(g.floats, g.m.Graph.AddConstant("w", onnx.FloatTensor(dtype, make([]float64, n), s...)))
	}
	return g
}

// pick draws an operand that ok accepts, or nil.
func (g *grower) pick(ok func([]int64) bool) *onnx.Value {
	for range 12 {
		at := len(g.floats) - 1 - min(g.r.IntN(6), len(g.floats)-1)
		if g.r.IntN(4) == 0 {
			at = g.r.IntN(len(g.floats))
		}
		if v := g.floats[at]; ok(extents(v)) {
			return v
		}
	}
	return nil
}

func extents(v *onnx.Value) []int64 {
	d, _ := v.Type.Shape.Ints()
	return d
}

func anyShape([]int64) bool { return true }

func atLeast(rank int) func([]int64) bool { return func(d []int64) bool { return len(d) >= rank } }

// growth is one way to add nodes: it returns the new operands, nil if the
// graph offers nothing to start from.
type growth func(g *grower) []*onnx.Value

func (g *grower) op(op string, in []*onnx.Value, attrs ...onnx.Attribute) []*onnx.Value {
	return []*onnx.Value{g.b.Op(op, in, attrs...)}
}

func unary(ops ...string) growth {
	return func(g *grower) []*onnx.Value {
		return g.op(ops[g.r.IntN(len(ops))], build.In(g.pick(anyShape)))
	}
}

func (g *grower) axis(v *onnx.Value) int64 { return int64(g.r.IntN(len(extents(v)))) }

var growths = []growth{
	unary("Tanh", "Relu", "Sigmoid", "Softplus", "LeakyRelu", "Elu", "Clip"),
	unary("Neg", "Exp", "Abs", "Erf", "Sqrt", "Floor", "Identity"),
	growBinary, growBinary, growBinary, growViews, growViews, growReduce, growSoftmax,
	growWhere, growTranspose, growMatMul, growGemm, growConcat, growSplit, growVariadic,
	growNorm, growDropout, growCast, growShapes1, growGather, growSlice, growScatter, growClip, growEinsum,
}

func growBinary(g *grower) []*onnx.Value {
	x := g.pick(anyShape)
	y := g.pick(func(d []int64) bool { return broadcasts(extents(x), d) })
	if y == nil {
		y = x
	}
	return g.op([]string{"Add", "Sub", "Mul", "Div", "Pow"}[g.r.IntN(5)], build.In(x, y))
}

func broadcasts(a, b []int64) bool {
	for i := 1; i <= min(len(a), len(b)); i++ {
		if x, y := a[len(a)-i], b[len(b)-i]; x != y && x != 1 && y != 1 {
			return false
		}
	}
	return true
}

func growViews(g *grower) []*onnx.Value {
	x := g.pick(anyShape)
	n, _ := onnx.Elements(extents(x))
	switch g.r.IntN(5) {
	case 0:
		return g.op("Unsqueeze", build.In(x, g.b.Ints(0)))
	case 1:
		if d := extents(x); len(d) > 0 && d[0] == 1 {
			return g.op("Squeeze", build.In(x, g.b.Ints(0)))
		}
	case 2:
		return g.op("Flatten", build.In(x), onnx.IntAttr("axis", 0))
	case 3:
		if n%6 == 0 {
			return g.op("Reshape", build.In(x, g.b.Ints(-1, 6)))
		}
	}
	return g.op("Identity", build.In(x))
}

func growReduce(g *grower) []*onnx.Value {
	x := g.pick(atLeast(1))
	if x == nil {
		return nil
	}
	op := []string{"ReduceSum", "ReduceMean", "ReduceMax"}[g.r.IntN(3)]
	return g.op(op, build.In(x, g.b.Ints(g.axis(x))), onnx.IntAttr("keepdims", int64(g.r.IntN(2))))
}

func growSoftmax(g *grower) []*onnx.Value {
	x := g.pick(atLeast(1))
	if x == nil {
		return nil
	}
	return g.op([]string{"Softmax", "LogSoftmax"}[g.r.IntN(2)], build.In(x), onnx.IntAttr("axis", g.axis(x)))
}

func growWhere(g *grower) []*onnx.Value {
	x := g.pick(anyShape)
	y := g.pick(func(d []int64) bool { return broadcasts(extents(x), d) })
	if y == nil {
		y = x
	}
	c := g.b.Op("Less", build.In(x, y))
	return g.op("Where", build.In(c, x, y))
}

func growTranspose(g *grower) []*onnx.Value {
	x := g.pick(atLeast(1))
	if x == nil {
		return nil
	}
	perm := make([]int64, len(extents(x)))
	for i, p := range g.r.Perm(len(perm)) {
		perm[i] = int64(p)
	}
	return g.op("Transpose", build.In(x), onnx.IntsAttr("perm", perm...))
}

func growMatMul(g *grower) []*onnx.Value {
	x := g.pick(atLeast(2))
	if x == nil {
		return nil
	}
	d := extents(x)
	y := g.pick(func(e []int64) bool { return len(e) == 2 && e[0] == d[len(d)-1] })
	if y == nil {
		return nil
	}
	return g.op("MatMul", build.In(x, y))
}

func growGemm(g *grower) []*onnx.Value {
	x := g.pick(func(d []int64) bool { return len(d) == 2 })
	if x == nil {
		return nil
	}
	y := g.pick(func(d []int64) bool { return len(d) == 2 && d[1] == extents(x)[1] })
	if y == nil {
		return nil
	}
	return g.op("Gemm", build.In(x, y), onnx.IntAttr("transB", 1))
}

func growConcat(g *grower) []*onnx.Value {
	x := g.pick(atLeast(1))
	if x == nil || extents(x)[0] > 50 {
		return nil
	}
	return g.op("Concat", build.In(x, x), onnx.IntAttr("axis", 0))
}

func growSplit(g *grower) []*onnx.Value {
	x := g.pick(func(d []int64) bool { return len(d) > 0 && d[len(d)-1]%2 == 0 })
	if x == nil {
		return nil
	}
	return g.b.Node("", "Split", build.In(x), 2, onnx.IntAttr("axis", -1), onnx.IntAttr("num_outputs", 2))
}

func growVariadic(g *grower) []*onnx.Value {
	x := g.pick(anyShape)
	in := build.In(x)
	for range 1 + g.r.IntN(3) {
		if y := g.pick(func(d []int64) bool { return broadcasts(extents(x), d) }); y != nil && broadcastsAll(in, y) {
			in = append(in, y)
		}
	}
	return g.op([]string{"Max", "Min", "Sum", "Mean"}[g.r.IntN(4)], in)
}

func broadcastsAll(in []*onnx.Value, y *onnx.Value) bool {
	return !slices.ContainsFunc(in, func(x *onnx.Value) bool { return !broadcasts(extents(x), extents(y)) })
}

// growNorm makes a LayerNormalization with outputs that nothing reads.
func growNorm(g *grower) []*onnx.Value {
	x := g.pick(atLeast(1))
	if x == nil {
		return nil
	}
	d := extents(x)
	n := d[len(d)-1]
	scale := g.b.Const(onnx.FloatTensor(g.dtype, make([]float64, n), n))
	outputs := 1 + 2*g.r.IntN(2)
	return g.b.Node("", "LayerNormalization", build.In(x, scale), outputs)[:1]
}

func growDropout(g *grower) []*onnx.Value {
	in := build.In(g.pick(anyShape), g.b.Scalar(g.dtype, 0.5), g.b.Const(onnx.NewTensor(onnx.Bool, nil, []byte{1})))
	return g.b.Node("", "Dropout", in, 1+g.r.IntN(2), onnx.IntAttr("seed", 3))[:1]
}

// growCast goes through a type of the same or of another size and back. No
// Cast follows another, as ONNX Runtime may merge them.
func growCast(g *grower) []*onnx.Value {
	to := []onnx.DType{onnx.Int32, onnx.Int64, onnx.Float64, onnx.Bool}[g.r.IntN(4)]
	y := g.b.Op("Cast", build.In(g.pick(anyShape)), onnx.IntAttr("to", int64(to)))
	if to == onnx.Bool {
		y = g.b.Op("Not", build.In(y))
	} else {
		y = g.b.Op("Neg", build.In(y))
	}
	return g.op("Abs", build.In(g.b.Op("Cast", build.In(y), onnx.IntAttr("to", int64(g.dtype)))))
}

// growShapes1 reshapes by the shape of another value, or expands a scalar.
func growShapes1(g *grower) []*onnx.Value {
	x := g.pick(anyShape)
	s := g.b.Op("Shape", build.In(x))
	n, _ := onnx.Elements(extents(x))
	if y := g.pick(func(d []int64) bool { m, _ := onnx.Elements(d); return m == n && len(d) > 0 }); y != nil && g.r.IntN(2) == 0 {
		return g.op("Reshape", build.In(y, s))
	}
	return g.op("Expand", build.In(g.b.Scalar(g.dtype, 1), s))
}

func growGather(g *grower) []*onnx.Value {
	x := g.pick(atLeast(1))
	if x == nil {
		return nil
	}
	return g.op("Gather", build.In(x, g.b.Ints(0, 0, 0)), onnx.IntAttr("axis", g.axis(x)))
}

func growSlice(g *grower) []*onnx.Value {
	x := g.pick(func(d []int64) bool { return len(d) > 0 && d[0] > 1 })
	if x == nil {
		return nil
	}
	return g.op("Slice", build.In(x, g.b.Ints(0), g.b.Ints(extents(x)[0]-1), g.b.Ints(0)))
}

func growScatter(g *grower) []*onnx.Value {
	x := g.pick(func(d []int64) bool { return len(d) == 2 })
	if x == nil {
		return nil
	}
	d := extents(x)
	index := g.b.Const(onnx.Int64Tensor(make([]int64, d[1]), 1, d[1]))
	updates := g.b.Op("Slice", build.In(x, g.b.Ints(0), g.b.Ints(1), g.b.Ints(0)))
	return g.op("ScatterElements", build.In(x, index, updates), onnx.StringAttr("reduction", "add"))
}

// growClip leaves the optional lower bound out.
func growClip(g *grower) []*onnx.Value {
	return g.op("Clip", build.In(g.pick(anyShape), nil, g.b.Scalar(g.dtype, 1)))
}

func growEinsum(g *grower) []*onnx.Value {
	x := g.pick(func(d []int64) bool { return len(d) == 2 })
	if x == nil {
		return nil
	}
	equation := []string{"ij->ji", "ij,ij->i", "ij,kj->ik", "ij,ij->ij", "ij->i", "ij,kj->ki", "ij,kj->jik", "ji,jk->ki", "...i,...k->k...i", "i...->...i", "...j,kj->...k"}[g.r.IntN(11)]
	in := build.In(x)
	if strings.Contains(equation, ",") {
		in = append(in, x)
	}
	return g.op("Einsum", in, onnx.StringAttr("equation", equation))
}

// grow adds nodes and outputs.
func (g *grower) grow(nodes int) (*onnx.Model, error) {
	for g.made = 0; g.made < nodes; g.made++ {
		for _, v := range growths[g.r.IntN(len(growths))](g) {
			n, ok := onnx.Elements(extents(v))
			if ok && n > 0 && n < 2000 && len(extents(v)) < 5 {
				g.floats = append(g.floats, v)
			}
		}
		if err := g.b.Err(); err != nil {
			return nil, err
		}
	}
	g.b.Flush()
	outputs := 0
	for _, n := range g.m.Graph.Nodes {
		v := n.Out(0)
		if v == nil {
			continue
		}
		if len(v.Uses()) == 0 && g.r.IntN(8) > 0 || g.r.IntN(20) == 0 {
			g.m.Graph.AddOutput(v)
			outputs++
		}
	}
	if g.r.IntN(6) == 0 { // what goes in may come out
		g.m.Graph.AddOutput(g.floats[g.r.IntN(3)])
	}
	if outputs == 0 {
		g.m.Graph.AddOutput(g.m.Graph.Nodes[len(g.m.Graph.Nodes)-1].Out(0))
	}
	return g.m, nil
}

// checkRandom compares one random graph, from the file alone.
func checkRandom(seed uint64, dir string) error {
	m, err := newGrower(seed).grow(5 + int(seed%60))
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "r.onnx")
	if seed%2 == 0 {
		m.Graph.AnnotateTypes()
	}
	if err := m.Save(path); err != nil {
		return err
	}
	if m, err = onnx.Load(path); err != nil {
		return err
	}
	if _, err := infer.Model(m, infer.Options{Strict: true}); err != nil {
		return err
	}
	threads := 1 + int(seed%2)
	var bound []string
	if v := m.Graph.Outputs[0]; seed%3 == 0 && v.Producer != nil && v.Type.IsStatic() {
		bound = append(bound, v.Name)
	}
	p, err := Predict(m, Options{Threads: threads, Bound: bound})
	if err != nil {
		return err
	}
	if !p.Exact() {
		return fmt.Errorf("not exact: %s", p.Unknown[0])
	}
	o := ort.SessionOptions{Threads: threads, ProfilePrefix: filepath.Join(dir, "p")}
	real, err := measure(path, o, nil, bound...)
	if err != nil {
		return err
	}
	if order := p.labels(); !slices.Equal(order, real.order) {
		return fmt.Errorf("order %v, measured %v", order, real.order)
	}
	if diff := compare(p, real, false); diff != "" {
		return fmt.Errorf("%s", diff)
	}
	if s := p.Session.Bytes(); s != real.session {
		return fmt.Errorf("session holds %d bytes, predicted %d", real.session, s)
	}
	return nil
}

// Order, trace, peak and session bytes of 2,000 random graphs, exactly.
func TestRandomGraphs(t *testing.T) {
	count := uint64(2000)
	if testing.Short() {
		count = 200
	}
	dir, failed := t.TempDir(), 0
	for seed := range count {
		if err := checkRandom(seed, dir); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			if keep := os.Getenv("REMAT_KEEP"); keep != "" {
				os.Rename(filepath.Join(dir, "r.onnx"), filepath.Join(keep, fmt.Sprintf("r%d.onnx", seed)))
			}
			if failed++; failed == 8 {
				t.FailNow()
			}
		}
	}
}
