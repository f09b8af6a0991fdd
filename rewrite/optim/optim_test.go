package optim

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// toyModel is the loss ½Σ(x·P+b)² with its gradients. P is also read by "late",
// an output that no gradient depends on, through a Reshape.
func toyModel(t *testing.T) (*onnx.Model, []Param) {
	t.Helper()
	return toyModelOf(t, 3, 4)
}

// toyModelOf is toyModel with P of another shape, whose rows are the first axis.
func toyModelOf(t *testing.T, dims ...int64) (*onnx.Model, []Param) {
	t.Helper()
	m := onnx.NewModel("toy", 20)
	g := m.Graph
	f32 := func(dims ...int64) onnx.Type { return onnx.TensorOf(onnx.Float32, onnx.StaticShape(dims...)) }
	types, err := infer.Model(m, infer.Options{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	p, bias, x := g.AddInput("P", f32(dims...)), g.AddInput("b", f32(4)), g.AddInput("x", f32(5, 3))
	b := build.New(g, types, "toy")
	matrix := p
	if !slices.Equal(dims, []int64{3, 4}) {
		matrix = b.Op("Reshape", build.In(p, b.Ints(3, 4)))
	}
	y := b.Op("Gemm", build.In(x, matrix, bias))
	half := b.Op("Mul", build.In(b.Op("Mul", build.In(y, y)), b.Scalar(onnx.Float32, 0.5)))
	loss := b.NodeNamed("", "ReduceSum", "loss", build.In(half), []string{"loss"}, onnx.IntAttr("keepdims", 0))[0]
	gp := b.Op("Gemm", build.In(x, y), onnx.IntAttr("transA", 1))
	if matrix != p {
		gp = b.Op("Reshape", build.In(gp, b.Ints(dims...)))
	}
	gb := b.Op("ReduceSum", build.In(y, b.Ints(0)), onnx.IntAttr("keepdims", 0))
	late := b.NodeNamed("", "Exp", "late", build.In(b.Op("Reshape", build.In(p, b.Ints(12)))), []string{"late"})[0]
	if b.Err() != nil {
		t.Fatal(b.Err())
	}
	b.Flush()
	g.AddOutput(loss)
	g.AddOutput(late)
	m.SetMetadata(step.RolesKey, `{"loss": "loss"}`)
	return m, []Param{{p, gp}, {bias, gb}}
}

// wave is data that is neither small nor regular.
func wave(n int, phase float64) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = float64(float32(math.Sin(float64(i*i)+phase) + 0.3))
	}
	return out
}

func tensor(values []float64, dims ...int64) runtime.Tensor {
	f := make([]float32, len(values))
	for i, v := range values {
		f[i] = float32(v)
	}
	return runtime.FromFloat32s(f, dims...)
}

// testSteps and testRate are those of a training in the tests.
const (
	testSteps = 8
	testRate  = 0.05
)

func open(t *testing.T, m *onnx.Model, level int, r *runtime.Roles) *runtime.Session {
	t.Helper()
	return openOn(t, m, level, r, wave(testSteps*15, 3))
}

// openOn opens with the data of testSteps steps, 15 numbers each.
func openOn(t *testing.T, m *onnx.Model, level int, r *runtime.Roles, x []float64) *runtime.Session {
	t.Helper()
	return openWith(t, m, level, r, x, nil)
}

// openAt opens with a number of the step, which stays until another is set.
func openAt(t *testing.T, m *onnx.Model, step int64) *runtime.Session {
	t.Helper()
	return openWith(t, m, 1, nil, wave(testSteps*15, 3), map[string]runtime.Tensor{"step": int64s(step)})
}

func openWith(t *testing.T, m *onnx.Model, level int, r *runtime.Roles, x []float64, more map[string]runtime.Tensor) *runtime.Session {
	t.Helper()
	feed := map[string]runtime.Tensor{"P": tensor(wave(12, 1), dimsOf(m, "P")...), "b": tensor(wave(4, 2), 4)}
	maps.Copy(feed, more)
	s, err := ortest.Engine(t).Open(m, runtime.Options{
		Level: level, Threads: 1, Provider: ort.CPU, LR: testRate, Roles: r,
		Feed: feed,
		Data: map[string]runtime.Tensor{"x": tensor(x, testSteps, 5, 3)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func dimsOf(m *onnx.Model, name string) []int64 {
	dims, _ := m.Graph.Value(name).Type.Shape.Ints()
	return dims
}

func with(k Kind, change func(*Options)) Options {
	o := Defaults(k)
	change(&o)
	return o
}

// vectors exempts biases and norms.
var vectors = []Exemption{{"vectors", func(_ string, rank int) bool { return rank < 2 }}}

var cases = map[string]Options{
	"sgd":       Defaults(SGD),
	"sgd decay": with(SGD, func(o *Options) { o.WeightDecay = 0.1 }),
	"momentum": with(SGD, func(o *Options) {
		o.Momentum, o.WeightDecay = 0.9, 0.1
	}),
	"momentum clip": with(SGD, func(o *Options) { o.Momentum, o.ClipNorm = 0.9, 0.5 }),
	"sgd clip accumulate": with(SGD, func(o *Options) {
		o.ClipNorm, o.Accumulate = 0.5, 2
	}),
	"momentum accumulate": with(SGD, func(o *Options) {
		o.Momentum, o.WeightDecay, o.Accumulate = 0.9, 0.1, 3
	}),
	"adamw": Defaults(AdamW),
	"adamw mask": with(AdamW, func(o *Options) {
		o.WeightDecay = 0.5
		o.NoDecay = vectors
	}),
	"momentum clip decay": with(SGD, func(o *Options) {
		o.Momentum, o.ClipNorm, o.WeightDecay = 0.9, 0.5, 0.1
		o.NoDecay = vectors
	}),
	"adamw without memory": with(AdamW, func(o *Options) { o.Beta1, o.Accumulate = 0, 2 }),
	"adamw clip":           with(AdamW, func(o *Options) { o.ClipNorm = 2 }),
	"adamw clip accumulate": with(AdamW, func(o *Options) {
		o.ClipNorm, o.Accumulate = 2, 4
	}),
	"sgd clip parameter": with(SGD, func(o *Options) { o.ClipNorm, o.ClipBy = 0.5, ClipParameter }),
	"momentum clip parameter decay": with(SGD, func(o *Options) {
		o.Momentum, o.ClipNorm, o.ClipBy, o.WeightDecay = 0.9, 0.5, ClipParameter, 0.1
		o.NoDecay = vectors
	}),
	"adamw clip parameter accumulate": with(AdamW, func(o *Options) {
		o.ClipNorm, o.ClipBy, o.Accumulate = 2, ClipParameter, 2
	}),
	"sgd clip previous decay": with(SGD, func(o *Options) {
		o.ClipNorm, o.ClipBy, o.WeightDecay = 4, ClipPrevious, 0.1
	}),
	"momentum clip previous decay": with(SGD, func(o *Options) {
		o.Momentum, o.ClipNorm, o.ClipBy, o.WeightDecay = 0.5, 4, ClipPrevious, 0.1
	}),
	"adamw clip previous": with(AdamW, func(o *Options) { o.ClipNorm, o.ClipBy = 2, ClipPrevious }),
	"adamw8bit":           Defaults(AdamW8bit),
	"lion":                Defaults(Lion),
	"lion decay mask": with(Lion, func(o *Options) {
		o.WeightDecay = 0.5
		o.NoDecay = vectors
	}),
	"lion equal averages": with(Lion, func(o *Options) { o.Beta1, o.Beta2 = 0.9, 0.9 }),
	"lion slow update":    with(Lion, func(o *Options) { o.Beta1, o.Beta2 = 0.95, 0.5 }),
	"lion plain update":   with(Lion, func(o *Options) { o.Beta1 = 0 }),
	"lion plain average":  with(Lion, func(o *Options) { o.Beta2 = 0 }),
	"lion without memory": with(Lion, func(o *Options) { o.Beta1, o.Beta2, o.Accumulate = 0, 0, 2 }),
	"lion clip accumulate": with(Lion, func(o *Options) {
		o.ClipNorm, o.Accumulate, o.WeightDecay = 2, 4, 0.1
	}),
	"lion clip parameter": with(Lion, func(o *Options) { o.ClipNorm, o.ClipBy = 0.5, ClipParameter }),
	"lion clip previous":  with(Lion, func(o *Options) { o.ClipNorm, o.ClipBy = 2, ClipPrevious }),
	"adafactor":           Defaults(Adafactor),
	"adafactor relative decay mask": with(Adafactor, func(o *Options) {
		o.RelativeStep, o.WeightDecay = 1e-3, 0.1
		o.NoDecay = vectors
	}),
	"adafactor clip accumulate": with(Adafactor, func(o *Options) {
		o.ClipNorm, o.Accumulate = 2, 4
	}),
	"adafactor clip parameter": with(Adafactor, func(o *Options) { o.ClipNorm, o.ClipBy = 0.5, ClipParameter }),
	"adafactor clip previous":  with(Adafactor, func(o *Options) { o.ClipNorm, o.ClipBy = 2, ClipPrevious }),
	"apollo":                   Defaults(ApolloMini),
	"apollo decay mask": with(ApolloMini, func(o *Options) {
		o.WeightDecay, o.Scale = 0.5, 2
		o.NoDecay = vectors
	}),
	"apollo clip accumulate": with(ApolloMini, func(o *Options) {
		o.ClipNorm, o.Accumulate = 2, 4
	}),
	"apollo hidden only":    with(ApolloMini, func(o *Options) { o.HiddenOnly = 1 }),
	"apollo without memory": with(ApolloMini, func(o *Options) { o.Beta1, o.Accumulate = 0, 2 }),
	"apollo clip parameter": with(ApolloMini, func(o *Options) { o.ClipNorm, o.ClipBy = 0.5, ClipParameter }),
	"apollo clip previous":  with(ApolloMini, func(o *Options) { o.ClipNorm, o.ClipBy = 2, ClipPrevious }),
	"muon":                  Defaults(Muon),
	"muon mask": with(Muon, func(o *Options) {
		o.WeightDecay, o.Momentum = 0.5, 0.6
		o.NoDecay = vectors
	}),
	"muon without memory": with(Muon, func(o *Options) { o.Momentum, o.Accumulate = 0, 2 }),
	"muon clip accumulate": with(Muon, func(o *Options) {
		o.ClipNorm, o.Accumulate = 2, 4
	}),
	"muon clip parameter": with(Muon, func(o *Options) { o.ClipNorm, o.ClipBy = 0.5, ClipParameter }),
	"muon clip previous":  with(Muon, func(o *Options) { o.ClipNorm, o.ClipBy = 2, ClipPrevious }),
	"adamw clip previous accumulate": with(AdamW, func(o *Options) {
		o.ClipNorm, o.ClipBy, o.Accumulate = 2, ClipPrevious, 3
	}),
}

// TestFollowsReference trains in ONNX Runtime, in place, and in float64: the parameter
// as a matrix, wide and tall, and as a tensor of more axes.
func TestFollowsReference(t *testing.T) {
	for name, o := range cases {
		for _, c := range []struct {
			level int
			dims  []int64
		}{{0, []int64{3, 4}}, {99, []int64{3, 4}}, {1, []int64{6, 2}}, {1, []int64{3, 2, 1, 2}}} {
			m, params := toyModelOf(t, c.dims...)
			res, err := Apply(m, params, o)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := m.Check(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			// One reader at least needs a barrier: "late".
			if res.Barriers == 0 {
				t.Errorf("%s: no barrier was added", name)
			}
			ref := newReference(o, wave(12, 1), wave(4, 2))
			ref.cols = 12 / int(c.dims[0])
			follow(t, name, open(t, m, c.level, nil), ref)
		}
	}
}

// follow trains in a session and in float64.
func follow(t *testing.T, name string, s *runtime.Session, ref *reference) {
	t.Helper()
	x, begun := wave(testSteps*15, 3), ref.step > 0
	for i := range testSteps {
		if begun {
			if err := s.SetInput("step", int64s(int64(ref.step+1))); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		ref.train(x[15*i : 15*i+15])
		compare(t, name, s, ref, i)
	}
	for _, in := range s.Updated() {
		if !s.InPlace(in) {
			t.Errorf("%s: %s is not updated in place", name, in)
		}
	}
}

func compare(t *testing.T, name string, s *runtime.Session, ref *reference, step int) {
	t.Helper()
	for i, p := range []string{"P", "b"} {
		got, _, err := s.Input(p)
		if err != nil {
			t.Fatal(err)
		}
		values, _ := got.Float64s()
		for j, want := range ref.params[i] {
			if math.Abs(values[j]-want) > 2e-5*(1+math.Abs(want)) {
				t.Fatalf("%s: step %d, %s[%d] is %v, not %v", name, step+1, p, j, values[j], want)
			}
		}
	}
}

// TestInPlaceIsTheSame runs the same file with outputs of their own, copied
// over the inputs by hand: the bits agree.
func TestInPlaceIsTheSame(t *testing.T) {
	for name, o := range cases {
		m, params := toyModel(t)
		if _, err := Apply(m, params, o); err != nil {
			t.Fatal(err)
		}
		over := open(t, m, 1, nil)
		apart := open(t, m, 1, &runtime.Roles{Loss: "loss"})
		// Without roles nothing is known to be state; it begins as zeros.
		for _, in := range over.Updated() {
			zero, _, _ := over.Input(in)
			if err := apart.SetInput(in, zero); err != nil {
				t.Fatal(err)
			}
		}
		for range testSteps {
			if _, err := over.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
			step, err := apart.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, in := range over.Updated() {
				out, ok := step.Output(in + ".new")
				a, _, _ := over.Input(in)
				if !ok || !bytes.Equal(a.Data, out.Data) {
					t.Fatalf("%s: %s differs in place", name, in)
				}
				out.Data = bytes.Clone(out.Data)
				if err := apart.SetInput(in, out.Tensor); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestNames holds the contract on names, types and roles.
func TestNames(t *testing.T) {
	m, params := toyModel(t)
	o := with(AdamW, func(o *Options) { o.Accumulate, o.KeepGrads = 2, true })
	if _, err := Apply(m, params, o); err != nil {
		t.Fatal(err)
	}
	var inputs, outputs []string
	for _, v := range m.Graph.Inputs {
		inputs = append(inputs, v.Name+" "+v.Type.String())
	}
	for _, v := range m.Graph.Outputs {
		outputs = append(outputs, v.Name)
	}
	wantIn := "P float32[3,4]|b float32[4]|x float32[5,3]|lr float32[]|step int64[]|P.acc float32[3,4]|b.acc float32[4]|P.m float32[3,4]|P.v float32[3,4]|b.m float32[4]|b.v float32[4]"
	if got := strings.Join(inputs, "|"); got != wantIn {
		t.Errorf("inputs %s", got)
	}
	wantOut := "loss late P.grad b.grad P.m.new P.v.new P.new P.acc.new b.m.new b.v.new b.new b.acc.new"
	if got := strings.Join(outputs, " "); got != wantOut {
		t.Errorf("outputs %s", got)
	}
	roles, _ := m.Metadata(step.RolesKey)
	for _, want := range []string{`"P.acc":"P.acc.new"`, `"b":"b.new"`, `"grad":{"P":"P.grad","b":"b.grad"}`} {
		if !strings.Contains(roles, want) {
			t.Errorf("roles %s lack %s", roles, want)
		}
	}
	for _, n := range m.Graph.Nodes {
		for _, v := range n.Outputs {
			if !v.Type.IsStatic() {
				t.Errorf("%s has type %s", v.Name, v.Type)
			}
		}
		if n.Out(0).Dead() {
			t.Errorf("node %q serves nobody", n.Name())
		}
	}
}

func TestNoneKeepsGradients(t *testing.T) {
	m, params := toyModel(t)
	nodes := len(m.Graph.Nodes)
	if _, err := Apply(m, params, Defaults(None)); err != nil {
		t.Fatal(err)
	}
	if len(m.Graph.Nodes) != nodes || len(m.Graph.Inputs) != 3 || m.Graph.Outputs[2].Name != "P.grad" {
		t.Errorf("%d nodes, inputs %v, outputs %v", len(m.Graph.Nodes), m.Graph.Inputs, m.Graph.Outputs)
	}
}

func TestRefuses(t *testing.T) {
	m, params := toyModel(t)
	m.Graph.AddInput("P.v.new", onnx.TensorOf(onnx.Float32, nil))
	var clash *ClashError
	if _, err := Apply(m, params, Defaults(AdamW)); !errors.As(err, &clash) || clash.Name != "P.v.new" {
		t.Errorf("a name that is taken: %v", err)
	}
	for want, change := range map[string]func(*Options){
		"beta1":      func(o *Options) { o.Beta1 = 1 },
		"eps":        func(o *Options) { o.Eps = math.NaN() },
		"clip norm":  func(o *Options) { o.ClipNorm = -1 },
		"accumulate": func(o *Options) { o.Accumulate = -2 },
		"unknown":    func(o *Options) { o.Kind = "tiger" },
		"clip by":    func(o *Options) { o.ClipBy = "layer" },
	} {
		m, params := toyModel(t)
		if _, err := Apply(m, params, with(AdamW, change)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	m, params = toyModel(t)
	params[0].Value = params[0].Grad
	if _, err := Apply(m, params, Defaults(SGD)); err == nil || !strings.Contains(err.Error(), "not a float input") {
		t.Errorf("a parameter that is no input: %v", err)
	}
}

// TestResume: what a session leaves, fed to another one, goes on to the same bits.
func TestResume(t *testing.T) {
	x := wave(testSteps*15, 3)
	for name, o := range cases {
		m, params := toyModel(t)
		if _, err := Apply(m, params, o); err != nil {
			t.Fatal(err)
		}
		const before = 4 // where sums of 2 and 4 gradients begin anew, those of 3 do not
		whole := open(t, m, 1, nil)
		left := map[string]runtime.Tensor{"step": {Type: onnx.Int64, Data: []byte{before + 1, 0, 0, 0, 0, 0, 0, 0}}}
		for i := range before + 1 {
			if i == before {
				for _, in := range whole.Updated() {
					v, _, err := whole.Input(in)
					if err != nil {
						t.Fatal(err)
					}
					v.Data = bytes.Clone(v.Data)
					left[in] = v
				}
			}
			if _, err := whole.Step(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		again, err := ortest.Engine(t).Open(m, runtime.Options{
			Level: 1, Threads: 1, Provider: ort.CPU, LR: testRate, Feed: left,
			Data: map[string]runtime.Tensor{"x": tensor(x[15*before:], testSteps-before, 5, 3)},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		if _, err := again.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
		for _, in := range whole.Updated() {
			a, _, _ := whole.Input(in)
			b, _, _ := again.Input(in)
			if !bytes.Equal(a.Data, b.Data) {
				t.Errorf("%s: %s differs after resuming", name, in)
			}
		}
	}
}
