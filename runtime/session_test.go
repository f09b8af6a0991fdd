package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// trainingModel is one step of W.new = W − lr·W·x, W in a file beside it. The
// loss is the sum of W·x. With late, the loss reads W by a path that the
// update does not depend on.
func trainingModel(t *testing.T, late bool) string {
	t.Helper()
	m := onnx.NewModel("step", 17)
	g := m.Graph
	vec := onnx.TensorOf(onnx.Float32, onnx.StaticShape(4))
	w, x := g.AddInput("W", vec), g.AddInput("x", vec)
	lr := g.AddInput("lr", onnx.TensorOf(onnx.Float32, onnx.StaticShape()))
	p := g.NewNode("", "Mul", "product", []*onnx.Value{w, x}, []string{"p"})
	d := g.NewNode("", "Mul", "scaled", []*onnx.Value{p.Out(0), lr}, []string{"d"})
	u := g.NewNode("", "Sub", "update", []*onnx.Value{w, d.Out(0)}, []string{"W.new"})
	from := p.Out(0)
	g.Append(p, d, u)
	if late {
		n := g.NewNode("", "Exp", "late", []*onnx.Value{w}, []string{"e"})
		g.Append(n)
		from = n.Out(0)
	}
	l := g.NewNode("", "ReduceSum", "sum", []*onnx.Value{from}, []string{"loss"}, onnx.IntAttr("keepdims", 0))
	g.Append(l)
	l.Out(0).Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape())
	u.Out(0).Type = vec
	g.AddOutput(l.Out(0))
	g.AddOutput(u.Out(0))
	m.SetMetadata(ParametersKey, `{"W": {"file": "w.bin", "offset": 8, "bytes": 16}}`)
	dir := t.TempDir()
	weights := append(make([]byte, 8), FromFloat32s([]float32{1, 2, 3, 4}, 4).Data...)
	if err := os.WriteFile(filepath.Join(dir, "w.bin"), weights, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestSetInputLeavesTheFeed: a feed that no step writes is read where it lies,
// perhaps in a mapped file; a new value goes into memory of the session's own.
func TestSetInputLeavesTheFeed(t *testing.T) {
	x := FromFloat32s([]float32{1, 1, 1, 1}, 4)
	s, err := testEngine.OpenFile(trainingModel(t, false), Options{Provider: ort.CPU, Feeds: map[string]Tensor{"in:x": x}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, want := range []float64{20, 30} {
		v := float32(want / 10)
		if err := s.SetInput("x", FromFloat32s([]float32{v, v, v, v}, 4)); err != nil {
			t.Fatal(err)
		}
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		loss, _ := step.Output("loss")
		if got, _ := loss.Scalar(); got != want {
			t.Errorf("loss %v, want %v", got, want)
		}
		if err := s.SetInput("W", FromFloat32s([]float32{1, 2, 3, 4}, 4)); err != nil {
			t.Fatal(err)
		}
	}
	if v, _ := x.Float64s(); v[0] != 1 {
		t.Errorf("the feed is now %v", v)
	}
}

// TestTraining runs three steps; the parameter is updated in place where that
// is right, and its file never changes.
func TestTraining(t *testing.T) {
	for _, late := range []bool{false, true} {
		path := trainingModel(t, late)
		s, err := testEngine.OpenFile(path, Options{Level: 0, Provider: ort.CPU, LR: 0.5, Trace: true,
			Feeds: map[string]Tensor{"in:x": FromFloat32s([]float32{1, 1, 1, 1}, 4)}})
		if err != nil {
			t.Fatal(err)
		}
		// "late" is the last leaf but one: it runs after the update.
		if !late && !s.InPlace("W") {
			t.Error("the update was not done in place")
		}
		if err := s.MeasureArena(context.Background(), nil, true); err != nil {
			t.Fatal(err)
		}
		want := 10.0
		for range 3 {
			if late {
				want = 0
				w, _, _ := s.Input("W")
				values, _ := w.Float64s()
				for _, v := range values {
					want += math.Exp(v)
				}
			}
			step, err := s.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			loss, _ := step.Output("loss")
			if got, _ := loss.Scalar(); math.Abs(got-want) > 1e-4 {
				t.Errorf("late %v: loss %g, want %g", late, got, want)
			}
			checkTrace(t, step, s.Memory())
			want /= 2
		}
		w, _, err := s.Input("W")
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := w.Float64s(); v[3] != 0.5 {
			t.Errorf("late %v: W is %v after three steps", late, v)
		}
		m := s.Memory()
		if m.ParameterBytes != 16 || m.FeedBytes != 20 || m.StateBytes != 0 || m.ArenaPeakBytes == nil || *m.ArenaReservedBytes < *m.ArenaPeakBytes || m.ReservedBytes < m.LivePeakBytes {
			t.Errorf("memory: %+v", m)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		data, err := os.ReadFile(filepath.Join(filepath.Dir(path), "w.bin"))
		if err != nil || !bytes.Equal(data[8:], FromFloat32s([]float32{1, 2, 3, 4}).Data) {
			t.Errorf("the parameter file was changed: %v, %v", data, err)
		}
	}
}

// TestForeignUpdates trains a foreign graph whose next values are named by
// roles: what is written in place gives the same losses as copies do, and
// parameters are told from the optimizer's state.
func TestForeignUpdates(t *testing.T) {
	path := filepath.Join(samples, "joint", "gpt2_tiny_eager.step_adamw.onnx")
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	roles := Roles{Loss: "loss", New: map[string]string{}}
	for _, v := range m.Graph.Inputs {
		if o := m.Graph.Value("new_" + v.Name); o != nil {
			roles.New[v.Name] = o.Name
		}
	}
	m.Close()
	var losses [2][]float64
	for i := range losses {
		s, err := testEngine.OpenFile(path, Options{Level: 1, Threads: 1, Provider: ort.CPU, Roles: &roles, Feeds: readSample(t, path)})
		if err != nil {
			t.Fatal(err)
		}
		shared := 0
		for _, in := range s.inputs {
			if in.inPlace {
				shared++
			}
			in.inPlace = in.inPlace && i == 0
		}
		if shared == 0 {
			t.Error("nothing is updated in place")
		}
		if got := s.Memory(); got.ParameterBytes == 0 || got.StateBytes < got.ParameterBytes || got.FeedBytes > 2000 {
			t.Errorf("memory: %+v", got)
		}
		for range 4 {
			step, err := s.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			loss, _ := step.Output("loss")
			v, _ := loss.Scalar()
			losses[i] = append(losses[i], v)
		}
		s.Close()
	}
	if !slices.Equal(losses[0], losses[1]) || losses[0][3] >= losses[0][0] {
		t.Errorf("losses in place %v, copied %v", losses[0], losses[1])
	}
}

func TestUpdateSafe(t *testing.T) {
	for _, c := range []struct {
		late bool
		want bool
	}{{false, true}, {true, false}} {
		m, err := onnx.Load(trainingModel(t, c.late))
		if err != nil {
			t.Fatal(err)
		}
		g := m.Graph
		if got := updateSafe(g.Value("W"), g.Value("W.new"), step.Bound, byData(g)); got != c.want {
			t.Errorf("late %v: safe %v", c.late, got)
		}
		m.Close()
	}
}

// TestTransposedUpdate: backward reads W transposed twice, which ONNX Runtime
// makes a read of W itself. W must not be written before, at any level; where
// it is in place, three steps give what copies give.
func TestTransposedUpdate(t *testing.T) {
	m := onnx.NewModel("step", 17)
	g := m.Graph
	square := onnx.TensorOf(onnx.Float32, onnx.StaticShape(2, 2))
	w, v, x := g.AddInput("W", square), g.AddInput("V", square), g.AddInput("x", square)
	node := func(op string, in []*onnx.Value, out string, attrs ...onnx.Attribute) *onnx.Value {
		n := g.NewNode("", op, "node_"+out, in, []string{out}, attrs...)
		n.Out(0).Type = square
		g.Append(n)
		return n.Out(0)
	}
	swap := onnx.IntsAttr("perm", 1, 0)
	wt := node("Transpose", []*onnx.Value{w}, "wt", swap)
	h := node("Tanh", []*onnx.Value{node("MatMul", []*onnx.Value{x, v}, "a")}, "h")
	y := node("MatMul", []*onnx.Value{h, wt}, "y")
	dw := node("MatMul", []*onnx.Value{node("Transpose", []*onnx.Value{y}, "yt", swap), h}, "dw")
	dh := node("MatMul", []*onnx.Value{y, node("Transpose", []*onnx.Value{wt}, "wtt", swap)}, "dh")
	dv := node("MatMul", []*onnx.Value{node("Transpose", []*onnx.Value{x}, "xt", swap), dh}, "dv")
	// Run first what stands last: W's update before dh's product.
	vn := node("Sub", []*onnx.Value{v, dv}, "V.new")
	wn := node("Sub", []*onnx.Value{w, dw}, "W.new")
	loss := g.NewNode("", "ReduceSum", "sum", []*onnx.Value{y}, []string{"loss"}, onnx.IntAttr("keepdims", 0))
	loss.Out(0).Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape())
	g.Append(loss)
	for _, o := range []*onnx.Value{loss.Out(0), vn, wn} {
		g.AddOutput(o)
	}
	feeds := map[string]Tensor{
		"W": FromFloat32s([]float32{.1, .2, .3, -.4}, 2, 2), "V": FromFloat32s([]float32{.5, -.1, .2, .3}, 2, 2),
		"x": FromFloat32s([]float32{1, 2, 3, 4}, 2, 2),
	}
	for _, level := range []int{0, 1, 99} {
		var got [2][]float64
		for i, next := range []map[string]string{{"W": "W.new", "V": "V.new"}, nil} {
			s, err := testEngine.Open(m, Options{Level: level, Threads: 1, Provider: ort.CPU, Feeds: feeds, Roles: &Roles{Loss: "loss", New: next}})
			if err != nil {
				t.Fatal(err)
			}
			step, err := s.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"V.new", "W.new"} {
				out, _ := step.Output(name)
				values, err := out.Float64s()
				if err != nil {
					t.Fatal(err)
				}
				got[i] = append(got[i], values...)
			}
			s.Close()
		}
		if !slices.Equal(got[0], got[1]) {
			t.Errorf("level %d: in place %v, else %v", level, got[0], got[1])
		}
	}
}

// TestPrecedence: a feed of its own, the archive, the file, random.
func TestPrecedence(t *testing.T) {
	path := trainingModel(t, false)
	own, archive := FromFloat32s([]float32{7, 7, 7, 7}, 4), FromFloat32s([]float32{8, 8, 8, 8}, 4)
	for _, c := range []struct {
		o    Options
		want float64
	}{
		{Options{Feed: map[string]Tensor{"W": own}, Feeds: map[string]Tensor{"W": archive}}, 7},
		{Options{Feeds: map[string]Tensor{"param:W": archive, "unknown": archive}}, 8},
		{Options{}, 1},
	} {
		c.o.Provider = ort.CPU
		s, err := testEngine.OpenFile(path, c.o)
		if err != nil {
			t.Fatal(err)
		}
		w, _, err := s.Input("W")
		if err != nil {
			t.Fatal(err)
		}
		if v, _ := w.Float64s(); v[0] != c.want {
			t.Errorf("W is %v, want %g", v, c.want)
		}
		x, _, _ := s.Input("x")
		again := make([]byte, 16)
		randomTensor(s.Model.Graph.Value("x"), onnx.Float32, again, 0, 0)
		if !bytes.Equal(x.Data, again) {
			t.Error("random values are not repeatable")
		}
		if v, _ := x.Float64s(); v[0] == 0 || math.Abs(v[0]) > 0.2 {
			t.Errorf("random values are %v", v)
		}
		s.Close()
	}
}

// TestFedTwice: keys of an archive that feed one input feed it the same, or are refused.
func TestFedTwice(t *testing.T) {
	path := trainingModel(t, false)
	seven, eight := FromFloat32s([]float32{7, 7, 7, 7}, 4), FromFloat32s([]float32{8, 8, 8, 8}, 4)
	_, err := testEngine.OpenFile(path, Options{Provider: ort.CPU, Feeds: map[string]Tensor{"in:W": seven, "param:W": eight}})
	if want := `input "W": keys "in:W" and "param:W" feed it other values: leave one out`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	s, err := testEngine.OpenFile(path, Options{Provider: ort.CPU, Feeds: map[string]Tensor{"W": seven, "param:W": seven}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if w, _, _ := s.Input("W"); !w.equal(seven) {
		t.Errorf("W is %v", w.Data)
	}
}

func TestData(t *testing.T) {
	path := trainingModel(t, false)
	s, err := testEngine.OpenFile(path, Options{Provider: ort.CPU,
		Data: map[string]Tensor{"x": FromFloat32s([]float32{1, 1, 1, 1, 2, 2, 2, 2}, 2, 4)}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i, want := range []float64{10, 20, 10} { // lr is 0
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		loss, _ := step.Output("loss")
		if got, _ := loss.Scalar(); got != want {
			t.Errorf("step %d: loss %g, want %g", i, got, want)
		}
	}
}

// TestMissingKernels: a model in a type for which the CPU has no kernel of an operator is
// refused with what to do, once.
func TestMissingKernels(t *testing.T) {
	for of, body := range map[string]string{
		"bfloat16": "in x bfloat16[2,2]\n y = MatMul(x, x)\n out y bfloat16[2,2]",
		"float64":  "in x float64[1,1,2,2]\n w = Cast(x) {to=11}\n y = InstanceNormalization(x, s, s)\n init s float64[1] = [1]\n out y float64[1,1,2,2]",
	} {
		m, err := onnx.Parse("model ir=10 opset=20\ngraph g {\n " + body + "\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		_, err = testEngine.Open(m, Options{Provider: ort.CPU})
		if err == nil || strings.Count(err.Error(), "the model computes in "+of) != 1 || strings.Count(err.Error(), "export the model in float32") != 1 {
			t.Errorf("got %v", err)
		}
	}
}

// TestFeedsAreRounded: an input of a half type takes float32, to the nearest number of
// its type, wherever the feed comes from; the caller's feed stays. What would become
// infinite is refused.
func TestFeedsAreRounded(t *testing.T) {
	for _, d := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
		text := fmt.Sprintf("model ir=10 opset=20\ngraph g {\n in x %s[3]\n y = Cast(x) {to=1}\n out y float32[3]\n}\n", d)
		want := []float64{1, -2.5, 1 + 0x1p-9}
		if d == onnx.BFloat16 {
			want[2] = 1
		}
		x := FromFloat32s([]float32{1, -2.5, 1 + 0x1p-9}, 3)
		steps := Tensor{x.Type, []int64{1, 3}, x.Data}
		for name, o := range map[string]Options{
			"feeds": {Feeds: map[string]Tensor{"in:x": x}}, "data": {Data: map[string]Tensor{"x": steps}}, "feed": {Feed: map[string]Tensor{"x": x}},
		} {
			m, err := onnx.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			o.Provider = ort.CPU
			s, err := testEngine.Open(m, o)
			if err != nil {
				t.Errorf("%s, %s: %v", d, name, err)
				continue
			}
			step, err := s.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			y, _ := step.Output("y")
			if got, _ := y.Float64s(); !slices.Equal(got, want) {
				t.Errorf("%s, %s: read as %v, want %v", d, name, got, want)
			}
			s.Close()
		}
		if x.Type != onnx.Float32 {
			t.Errorf("the caller's feed is %s now", x)
		}
		m, err := onnx.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		big := FromFloat32s([]float32{1, 1, math.MaxFloat32}, 3)
		if _, err := testEngine.Open(m, Options{Provider: ort.CPU, Feed: map[string]Tensor{"x": big}}); err == nil || !strings.Contains(err.Error(), "beyond the range of "+d.String()) {
			t.Errorf("%s: %v, want a refusal", d, err)
		}
	}
}

func TestFeedErrors(t *testing.T) {
	sample := filepath.Join(samples, "gpt2_tiny_mask.ts_dynaxes.onnx")
	ids := func(dims ...int64) Tensor { n, _ := onnx.Elements(dims); return FromInt64s(make([]int64, n), dims...) }
	for _, c := range []struct {
		name, want string
		o          Options
	}{
		{"unknown input", `input "nobody": the model has no input of that name`, Options{Feed: map[string]Tensor{"nobody": ids(1)}}},
		{"wrong type", "feed has type float32, want int64", Options{Feed: map[string]Tensor{"labels": FromFloat32s([]float32{1}, 1, 1)}}},
		{"too little data", "feed has 8 bytes of data, want 128 for int64[2 8]", Options{Feed: map[string]Tensor{"labels": FromInt64s([]int64{1}, 2, 8)}}},
		{"wrong rank", "feed has shape [4], want", Options{Feed: map[string]Tensor{"labels": ids(4)}}},
		{"feeds that disagree", "with batch=2", Options{Feed: map[string]Tensor{"input_ids": ids(2, 8), "labels": ids(3, 8)}}},
		{"against --dim", "with seq=4", Options{Dims: map[string]int64{"seq": 4}, Feed: map[string]Tensor{"input_ids": ids(2, 8)}}},
		{"free dimension", "add --dim batch=N, or feed it", Options{Dims: map[string]int64{"seq": 4}}},
		{"data of other lengths", `input "labels": data of 3 steps, that of input "input_ids" has 2`, Options{Data: map[string]Tensor{"input_ids": ids(2, 2, 8), "labels": ids(3, 2, 8)}}},
		{"data without steps", "the leading axis must be the step", Options{Data: map[string]Tensor{"labels": ids(0, 2, 2)}}},
	} {
		c.o.Provider = ort.CPU
		_, err := testEngine.OpenFile(sample, c.o)
		var e *FeedError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestFreeDims takes free dimensions from --dim; token ids stay within the
// vocabulary, else the model would fail.
func TestFreeDims(t *testing.T) {
	s, err := testEngine.OpenFile(filepath.Join(samples, "gpt2_tiny_mask.ts_dynaxes.onnx"),
		Options{Provider: ort.CPU, Level: 1, Seed: 3, Dims: map[string]int64{"batch": 3, "seq": 8}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ids, _, err := s.Input("input_ids")
	if err != nil {
		t.Fatal(err)
	}
	values, _ := ids.Float64s()
	largest := 0.0
	for _, v := range values {
		largest = max(largest, v)
	}
	if len(values) != 24 || largest < 100 || largest >= 512 {
		t.Errorf("token ids %v are not spread over the vocabulary of 512", values)
	}
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	loss, _ := step.Output("loss")
	if v, ok := loss.Scalar(); !ok || v < 4 || v > 9 {
		t.Errorf("loss %g of an untrained model, want about ln 512", v)
	}
}

// TestWeightsOnce runs a step over 128 MiB of mapped weights: the process may
// not hold them twice.
func TestWeightsOnce(t *testing.T) {
	const elements = 32 << 20
	m := onnx.NewModel("weights", 17)
	g := m.Graph
	w := g.AddInput("W", onnx.TensorOf(onnx.Float32, onnx.StaticShape(elements)))
	n := g.NewNode("", "ReduceSum", "sum", []*onnx.Value{w}, []string{"loss"}, onnx.IntAttr("keepdims", 0))
	g.Append(n)
	n.Out(0).Type = onnx.TensorOf(onnx.Float32, onnx.StaticShape())
	g.AddOutput(n.Out(0))
	m.SetMetadata(ParametersKey, `{"W": {"file": "w.bin", "offset": 0, "bytes": 134217728}}`)
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(filepath.Dir(path), "w.bin")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 4*elements); err != nil {
		t.Fatal(err)
	}
	before, err := RSS()
	if err != nil {
		t.Fatal(err)
	}
	s, err := testEngine.OpenFile(path, Options{Provider: ort.CPU, Level: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	after, err := RSS()
	if err != nil {
		t.Fatal(err)
	}
	if grown := after - before; grown > 4*elements+32<<20 {
		t.Errorf("the process grew by %d bytes for %d of weights", grown, 4*elements)
	}
	if got := s.Memory(); got.ParameterBytes != 4*elements || got.SessionBytes > 1<<20 {
		t.Errorf("memory: %+v", got)
	}
}

// TestBadParameters: locations that do not fit their files or leave the folder.
func TestBadParameters(t *testing.T) {
	for _, c := range []struct{ entry, want string }{
		{`{"W": {"file": "w.bin", "offset": 16, "bytes": 16}}`, "lie outside w.bin"},
		{`{"W": {"file": "w.bin", "offset": -1, "bytes": 16}}`, "lie outside w.bin"},
		{`{"W": {"file": "w.bin", "offset": 0, "bytes": 12}}`, "its type needs 16"},
		{`{"W": {"file": "../w.bin", "offset": 0, "bytes": 16}}`, "W"},
		{`{"W": {"file": "/etc/passwd", "offset": 0, "bytes": 16}}`, "W"},
		{`{"W": {"file": "absent.bin", "offset": 0, "bytes": 16}}`, "W"},
		{`[]`, ParametersKey},
	} {
		path := trainingModel(t, false)
		m, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		m.SetMetadata(ParametersKey, c.entry)
		if _, err := testEngine.Open(m, Options{Provider: ort.CPU}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.entry, err, c.want)
		}
		m.Close()
	}
}

// TestInPlaceOnTheDevice: a value that is updated in place stays on the device, and
// comes back where it is asked for; a rehearsal has nothing to come back.
func TestInPlaceOnTheDevice(t *testing.T) {
	for _, provider := range providers(t) {
		s := openText(t, "model ir=9 opset=20\ngraph g {\nin W float32[4]\nin g float32[4]\nW.new = Sub(W, g)\nout W.new float32[4]\n}\n", Options{Provider: provider})
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if !s.InPlace("W") {
			t.Fatal("not in place")
		}
		outputs, err := s.Last()
		if s.rehearsed() {
			if !errors.Is(err, ErrRehearsed) || step.Outputs != nil || step.Device == nil || step.Device.CopiesToHost != 0 {
				t.Errorf("got %v, %v, %+v", outputs, err, step.Device)
			}
			continue
		}
		if err != nil || len(outputs) != 1 || len(outputs[0].Data) != 16 {
			t.Errorf("%s: got %v, %v", provider, outputs, err)
		}
	}
}

func openText(t *testing.T, text string, o Options) *Session {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	s, err := testEngine.Open(m, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), m.Close()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// TestStepEndsEarly: a step that was cancelled before it ran leaves all as it was, its number
// too; one that ended once parameters may have been written over is the session's last, since
// the next one would go on from values of two steps. A graph that updates nothing goes on.
func TestStepEndsEarly(t *testing.T) {
	for _, updates := range []bool{true, false} {
		m := onnx.NewModel("step", 17)
		g := m.Graph
		vec, scalar := onnx.TensorOf(onnx.Float32, onnx.StaticShape(4)), onnx.TensorOf(onnx.Int64, onnx.StaticShape())
		w, x := g.AddInput("W", vec), g.AddInput("x", vec)
		at, number := g.AddInput("at", scalar), g.AddInput("step", scalar)
		name := "W.new"
		if !updates {
			name = "sum"
		}
		u := g.NewNode("", "Add", "update", []*onnx.Value{w, x}, []string{name})
		n := g.NewNode("", "Abs", "number", []*onnx.Value{number}, []string{"number"})
		l := g.NewNode("", "Gather", "look up", []*onnx.Value{x, at}, []string{"loss"})
		g.Append(u, n, l)
		u.Out(0).Type, n.Out(0).Type, l.Out(0).Type = vec, scalar, onnx.TensorOf(onnx.Float32, onnx.StaticShape())
		for _, v := range []*onnx.Value{l.Out(0), n.Out(0), u.Out(0)} {
			g.AddOutput(v)
		}
		s, err := testEngine.Open(m, Options{Provider: ort.CPU, Feeds: map[string]Tensor{
			"W": FromFloat32s([]float32{1, 2, 3, 4}, 4), "x": FromFloat32s([]float32{1, 1, 1, 1}, 4), "at": FromInt64s([]int64{0}),
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		over, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := s.Step(over); !errors.Is(err, context.Canceled) {
			t.Errorf("a step of a context that is over: %v", err)
		}
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if o, _ := step.Output("number"); o.Data[0] != 1 {
			t.Errorf("the first step that runs has the number %d, want 1", o.Data[0])
		}
		if err := s.SetInput("at", FromInt64s([]int64{9})); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Step(context.Background()); err == nil {
			t.Fatal("a step that reads beyond a table does not fail")
		}
		if err := s.SetInput("at", FromInt64s([]int64{0})); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Step(context.Background()); (err != nil) != updates || (s.Whole() != nil) != updates {
			t.Errorf("updates %v: the step behind one that failed: %v; %v", updates, err, s.Whole())
		}
	}
}

// TestCloseTwice: an engine that is closed twice gives the library back once, so that another
// engine goes on.
func TestCloseTwice(t *testing.T) {
	e, err := New(testEngine.Env.Path())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s, err := testEngine.OpenFile(trainingModel(t, false), Options{Provider: ort.CPU})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
