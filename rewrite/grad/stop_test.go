package grad

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// TestStopsEqualPyTorch: straight-through, stop-gradient and target-network models
// have PyTorch's gradients, and train nothing that PyTorch gives none. The dynamo
// exporter says what is detached; for TorchScript it is said by hand.
func TestStopsEqualPyTorch(t *testing.T) {
	for name, stop := range map[string][]string{
		"vq":      {"/Sub_1_output_0", "/Expand_1_output_0", "/Expand_3_output_0"},
		"simsiam": {"/encoder/encoder.2_1/Gemm_output_0->/Mul", "/encoder/encoder.2_1/Gemm_output_0->/Mul_2", "/encoder/encoder.2/Gemm_output_0->/Mul_[46]"},
		"dqn":     {"/Add_output_0"},
		"gan":     {"/generator/*/Gemm_output_0"},
	} {
		t.Run(name+".dyn", func(t *testing.T) { checkStops(t, name, "dyn", nil) })
		if name != "vq" {
			t.Run(name+".dynopt", func(t *testing.T) { checkStops(t, name, "dynopt", nil) })
		}
		t.Run(name+".ts", func(t *testing.T) { checkStops(t, name, "ts", stop) })
	}
}

func checkStops(t *testing.T, name, kind string, stop []string) {
	base := filepath.Join(samplesDir, "stops", name)
	m, err := onnx.Load(base + "." + kind + ".onnx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	expected, err := runtime.ReadNPZ(base + ".npz")
	if err != nil {
		t.Fatal(err)
	}
	res, err := Differentiate(m, Options{Stop: stop})
	if err != nil {
		t.Fatal(err)
	}
	var trained []string
	for _, p := range res.Params {
		trained = append(trained, "grad:"+p.Name)
	}
	want := slices.DeleteFunc(slices.Sorted(maps.Keys(expected)), func(key string) bool { return !strings.HasPrefix(key, "grad:") })
	if slices.Sort(trained); !slices.Equal(trained, want) {
		t.Errorf("trains %v, PyTorch %v", trained, want)
	}
	if len(res.Stops) == 0 {
		t.Error("no stop is reported")
	}
	for _, n := range m.Graph.Nodes {
		if n.Is("Identity") && !n.Out(0).IsOutput() {
			t.Errorf("%s is left", n.Label())
		}
	}
	m.Graph.AnnotateTypes()
	got := ortest.Run(t, m, 99, sampleInputs(t, m, res, expected))
	compareLoss(t, res.Loss.Name, got, expected)
	compareGradients(t, got, expected)
}

func TestStopPatterns(t *testing.T) {
	const body = "in x float32[2]\ninit v float32[2] = [1, 2]\ninit w float32[2] = [3, 4]\na = Mul(x, v)\nb = Mul(a, w)\nc = Add(a, b)\nloss = ReduceSum(c) {keepdims=0}"
	for name, c := range map[string]struct {
		stop    []string
		trained string
		stops   int
		warning string
		err     string
	}{
		"a value":             {[]string{"a"}, "w", 1, "", ""},
		"an initializer":      {[]string{"w"}, "v", 1, "", ""},
		"one reader":          {[]string{"b->*"}, "v", 1, "", ""},
		"beside one that hit": {[]string{"b", "q*"}, "v", 1, `--stop "q*" matches no float value that is read`, ""},
		"nothing":             {[]string{"q*"}, "", 0, "", `stop "q*": matches no float value`},
		"no such reader":      {[]string{"a->q"}, "", 0, "", `stop "a->q": matches no float value`},
		"no pattern":          {[]string{"[a"}, "", 0, "", "not a valid pattern"},
		"everything":          {[]string{"*"}, "", 0, "", "depends on no float initializer"},
	} {
		res, err := Differentiate(parseGraph(t, body, "loss float32"), Options{Stop: c.stop})
		if c.err != "" {
			var stop *StopError
			var loss *LossError
			if err == nil || !strings.Contains(err.Error(), c.err) || !errors.As(err, &stop) && !errors.As(err, &loss) {
				t.Errorf("%s: %v, want %s", name, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var trained []string
		for _, p := range res.Params {
			trained = append(trained, p.Name)
		}
		if strings.Join(trained, " ") != c.trained || len(res.Stops) != c.stops || strings.Join(res.Warnings, "; ") != c.warning {
			t.Errorf("%s: trains %v, stops %v, warns %v", name, trained, res.Stops, res.Warnings)
		}
	}
}

// TestStopsOfJAX: what jax2onnx names as jax.lax.stop_gradient returns it hands no gradient on,
// in the body of a loop neither.
func TestStopsOfJAX(t *testing.T) {
	const body = "Identity(h)\ny = MatMul(%s, v)\nz = Add(y, h)\nloss = ReduceMean(z) {keepdims=0}"
	const loop = `init n int64[] = 2
init yes bool[] = true
z = Loop(n, yes, h) {body=graph body {
  in i int64[]
  in c bool[]
  in s float32[2,2]
  k = Identity(c)
  stop_out_0 = Identity(s)
  a = MatMul(stop_out_0, v)
  y = Tanh(a)
  out k bool[]
  out y float32[2,2]
}}
loss = ReduceMean(z) {keepdims=0}`
	for text, stopped := range map[string]bool{
		"stop_out_0 = " + strings.ReplaceAll(body, "%s", "stop_out_0"):       true,
		"f/stop_out_12 = " + strings.ReplaceAll(body, "%s", "f/stop_out_12"): true,
		"stop_output = " + strings.ReplaceAll(body, "%s", "stop_output"):     false,
		loop: true,
	} {
		m := parseGraph(t, "in x float32[2,2]\ninit w float32[2,2] = [1,2,3,4]\ninit v float32[2,2] = [1,2,3,5]\nh = MatMul(x, w)\n"+text, "loss float32")
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := len(res.Stops) > 0 && res.Stops[0].Source == "jax.lax.stop_gradient"; got != stopped {
			t.Errorf("%s: stops %v", text, res.Stops)
		}
		if trained := slices.ContainsFunc(res.Params, func(p Param) bool { return p.Name == "w" }); trained != (text != loop) {
			t.Errorf("%s: w is trained: %v", text, trained)
		}
	}
}
