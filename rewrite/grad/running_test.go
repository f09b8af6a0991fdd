package grad

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// twiceNormalized is a net that normalizes by the statistics of its batch, twice with the same
// running statistics.
const twiceNormalized = `
in x float32[3,2,2]
init s float32[2] = [1, 2]
init b float32[2] = [0.5, -1]
init m float32[2] = [0.25, -0.5]
init v float32[2] = [1.5, 0.75]
y, y_mean, y_var = BatchNormalization(x, s, b, m, v) {training_mode=1, momentum=0.75}
w = Add(y, x)
z, z_mean, z_var = BatchNormalization(w, s, b, m, v) {training_mode=1, momentum=0.75}
q = Mul(z, x)
loss = ReduceMean(q) {keepdims=0}
`

// moments are mean and variance of each of two channels of [3,2,2].
func moments(x []float64) (mean, variance [2]float64) {
	for i, v := range x {
		mean[i/2%2] += v / 6
	}
	for i, v := range x {
		d := v - mean[i/2%2]
		variance[i/2%2] += d * d / 6
	}
	return mean, variance
}

// TestRunning: a step moves running statistics by those of its batch, once for each node
// that normalizes with them, as ONNX says, and with PyTorch's variance where it wrote
// the file.
func TestRunning(t *testing.T) {
	x := []float64{0.5, -1, 2, 0.25, 1.5, -0.75, 3, 1, -2, 0.125, 0.5, -1.5}
	y := make([]float64, len(x))
	scale, bias := [2]float64{1, 2}, [2]float64{0.5, -1}
	mean, variance := moments(x)
	for i := range x {
		c := i / 2 % 2
		y[i] = (x[i]-mean[c])/math.Sqrt(variance[c]+1e-5)*scale[c] + bias[c] + x[i]
	}
	mean2, variance2 := moments(y)
	for _, c := range []struct {
		producer, shape string
		factor          float64
	}{{"", "3,2,2", 1}, {"pytorch", "3,2,2", 6.0 / 5}, {"pytorch", "n,2,k", 6.0 / 5}, {"onnx.compose.merge_models", "3,2,2", 6.0 / 5}} {
		t.Run(c.producer+" "+c.shape, func(t *testing.T) {
			m := parseGraph(t, strings.Replace(twiceNormalized, "3,2,2", c.shape, 1), "loss float32")
			m.Proto.ProducerName = &c.producer
			if c.producer == "onnx.compose.merge_models" { // of files by PyTorch
				noteCall(m, "loss", "mean.default", "%q")
			}
			res, err := Differentiate(m, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Check(); err != nil {
				t.Fatal(err)
			}
			if len(res.Params) != 2 || len(res.Buffers) != 2 || res.Buffers[0].Next != "m.new" || res.Buffers[1].Next != "v.new" {
				t.Fatalf("parameters %v, buffers %v", res.Params, res.Buffers)
			}
			roles, _, err := step.RolesOf(m, nil)
			if err != nil || roles.Updates() || !slices.Equal(roles.Buffers, []string{"m", "v"}) || roles.New["v"] != "v.new" || roles.Check(m.Graph) != nil {
				t.Errorf("roles %+v, %v", roles, err)
			}
			in := map[string]*onnx.Tensor{"x": onnx.FloatTensor(onnx.Float32, x, 3, 2, 2)}
			for name, value := range res.Values() {
				in[name] = value
			}
			out := ortest.Run(t, m, 99, in)
			for i := range 2 {
				wantMean := (0.75*[]float64{0.25, -0.5}[i]+0.25*mean[i])*0.75 + 0.25*mean2[i]
				wantVar := (0.75*[]float64{1.5, 0.75}[i]+0.25*c.factor*variance[i])*0.75 + 0.25*c.factor*variance2[i]
				if math.Abs(out["m.new"][i]-wantMean) > 1e-6 || math.Abs(out["v.new"][i]-wantVar) > 1e-6 {
					t.Errorf("channel %d: mean %v variance %v, want %v %v", i, out["m.new"][i], out["v.new"][i], wantMean, wantVar)
				}
			}
			if n := len(step.Statistics(m.Graph)); n != 4 {
				t.Errorf("%d places where a running statistic is moved, want 4", n)
			}
		})
	}
}

// TestRunningLeft: what is frozen, or taken from elsewhere, stays as it is.
func TestRunningLeft(t *testing.T) {
	res, err := Differentiate(parseGraph(t, twiceNormalized, "loss float32"), Options{Frozen: []string{"v"}})
	if err != nil || len(res.Buffers) != 0 {
		t.Errorf("frozen: buffers %v, %v", res.Buffers, err)
	}
	m := parseGraph(t, strings.Replace(twiceNormalized, "init m float32[2] = [0.25, -0.5]", "in k float32[2]\nm = Neg(k)", 1), "loss float32")
	if res, err = Differentiate(m, Options{}); err != nil || len(res.Buffers) != 0 {
		t.Errorf("computed: buffers %v, %v", res.Buffers, err)
	}
	m = parseGraph(t, strings.Replace(twiceNormalized, "q = Mul", "m.new = Neg(z)\nq = Mul", 1), "loss float32", "m.new float32")
	var clash *ClashError
	if _, err = Differentiate(m, Options{}); !errors.As(err, &clash) || clash.Name != "m.new" {
		t.Errorf("a name that is taken: %v", err)
	}
}

// TestRunningReturned: what the model returns as its next running statistics is the
// output that a step feeds back.
func TestRunningReturned(t *testing.T) {
	m := parseGraph(t, strings.Replace(twiceNormalized, "z, z_mean, z_var = BatchNormalization(w, s, b, m, v) {training_mode=1, momentum=0.75}", "z = Relu(w)", 1), "loss float32", "y_mean float32[2]")
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Buffers) != 2 || res.Buffers[0].Next != "y_mean" || res.Buffers[1].Next != "v.new" {
		t.Errorf("buffers %+v", res.Buffers)
	}
	if v := m.Graph.Value("y_mean"); v == nil || !v.IsOutput() || !v.Producer.MadeBy(step.StatisticPass) {
		t.Error("y_mean is not the statistic that was moved")
	}
}

// TestRunningMerged: running statistics that an exporter merged, as they begin alike, are
// moved apart, under the names that they had.
func TestRunningMerged(t *testing.T) {
	m := parseGraph(t, strings.NewReplacer("z, z_mean", "m2 = Identity(m)\nv2 = Identity(v)\nz, z_mean", "(w, s, b, m, v)", "(w, s, b, m2, v2)").Replace(twiceNormalized), "loss float32")
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range res.Buffers {
		names = append(names, b.Name)
	}
	if !slices.Equal(names, []string{"m", "v", "m2", "v2"}) {
		t.Errorf("buffers %v", names)
	}
}

// TestRunningOfHalf: PyTorch's factor of a running variance is right where a channel has
// more numbers than its half type reaches.
func TestRunningOfHalf(t *testing.T) {
	for _, shape := range []string{"2,2,200,200", "n,2,200,k"} {
		m := parseTorch(t, `
in x float16[`+shape+`]
init s float16[2] = [1, 2]
init b float16[2] = [0.5, -1]
init m float16[2] = [0.25, -0.5]
init v float16[2] = [1.5, 3]
y, y_mean, y_var = BatchNormalization(x, s, b, m, v) {training_mode=1}
f = Cast(y) {to=1}
q = Mul(f, f)
loss = ReduceMean(q) {keepdims=0}
`, "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		x := make([]float64, 2*2*200*200)
		for i := range x {
			x[i] = float64(i%2*2 - 1) // mean 0 and variance 1
		}
		in := map[string]*onnx.Tensor{"x": onnx.FloatTensor(onnx.Float16, x, 2, 2, 200, 200)}
		for name, value := range res.Values() {
			in[name] = value
		}
		got := ortest.Run(t, m, 0, in)["v.new"]
		for i, want := range []float64{1.45, 2.8} {
			if !(math.Abs(got[i]-want) < 3e-3) {
				t.Errorf("%s: channel %d has the variance %v, want %v", shape, i, got[i], want)
			}
		}
	}
}

// TestRunningDefaults: an initializer that the file declares as an input too is a running
// statistic as any other.
func TestRunningDefaults(t *testing.T) {
	m := parseGraph(t, twiceNormalized, "loss float32")
	m.Graph.OpenInitializers(slices.Clone(m.Graph.Initializers))
	res, err := Differentiate(m, Options{})
	if err != nil || len(res.Params) != 2 || len(res.Buffers) != 2 {
		t.Errorf("parameters %v, buffers %v, %v", res.Params, res.Buffers, err)
	}
}

// TestRunningOnce: no initializer is moved as a mean and as a variance.
func TestRunningOnce(t *testing.T) {
	_, err := Differentiate(parseGraph(t, strings.ReplaceAll(twiceNormalized, "b, m, v)", "b, m, m)"), "loss float32"), Options{})
	var unsupported *UnsupportedError
	if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), `"m" is both its running mean and its running variance`) {
		t.Errorf("%v", err)
	}
}

// TestRunningWithoutMomentum: with a momentum of 0 a running statistic is the batch's.
func TestRunningWithoutMomentum(t *testing.T) {
	m := parseGraph(t, strings.NewReplacer("momentum=0.75", "momentum=0.0", "z, z_mean, z_var = BatchNormalization(w, s, b, m, v) {training_mode=1, momentum=0.75}", "z = Relu(w)").Replace(twiceNormalized), "loss float32")
	res, err := Differentiate(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	x := []float64{0.5, -1, 2, 0.25, 1.5, -0.75, 3, 1, -2, 0.125, 0.5, -1.5}
	in := map[string]*onnx.Tensor{"x": onnx.FloatTensor(onnx.Float32, x, 3, 2, 2)}
	for name, value := range res.Values() {
		in[name] = value
	}
	out := ortest.Run(t, m, 99, in)
	mean, variance := moments(x)
	for i := range 2 {
		if math.Abs(out["m.new"][i]-mean[i]) > 1e-6 || math.Abs(out["v.new"][i]-variance[i]) > 1e-6 {
			t.Errorf("channel %d: mean %v variance %v, want %v %v", i, out["m.new"][i], out["v.new"][i], mean[i], variance[i])
		}
	}
	if !slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.Contains(w, "momentum of 0") }) {
		t.Errorf("warnings %q", res.Warnings)
	}
}

// TestFrozenStatisticsStay: ONNX Runtime writes over the statistics that a normalization in
// training reads, also where they are frozen, and another's scale and shift are the same
// constants, as in a fresh model.
func TestFrozenStatisticsStay(t *testing.T) {
	m := parseGraph(t, `in x float32[2,2,3]
init one float32[2] = [1,1]
init zero float32[2] = [0,0]
init mean float32[2] = [0,0]
init var float32[2] = [1,1]
init w float32[3,2] = [1,-2,3,4,-5,6]
y, y_mean, y_var = BatchNormalization(x, one, zero, mean, var) {training_mode=1, momentum=0.5}
u = Mul(y, y)
z, z_mean, z_var = BatchNormalization(u, one, zero, mean, var) {training_mode=1, momentum=0.5}
v = MatMul(z, w)
r = Relu(v)
loss = ReduceMean(r) {keepdims=0}
`, "loss float32")
	res, err := Differentiate(m, Options{Frozen: []string{"one", "zero", "mean", "var"}})
	if err != nil {
		t.Fatal(err)
	}
	inputs := map[string]*onnx.Tensor{"x": onnx.Float32Tensor([]float32{1, 2, 3, 9, 8, 6, 0, 5, 7, 4, 1, 2}, 2, 2, 3)}
	for name, x := range res.Values() {
		inputs[name] = x
	}
	s := ortest.Open(t, m, 1, inputs)
	first := s.Run()
	for range 2 {
		for name, got := range s.Run() {
			if !slices.Equal(got, first[name]) {
				t.Errorf("%s: %v, %v before", name, got, first[name])
			}
		}
	}
}
