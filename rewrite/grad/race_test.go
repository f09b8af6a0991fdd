package grad

// No update is lost where several go to one place, whatever the number of
// threads: no ScatterND with a reduction is left (see scatter.go), and every rule
// that scatters gives the same bits in each of many runs.

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

func TestNoRuleRaces(t *testing.T) {
	for _, c := range allCases() {
		m := c.model(t)
		var names []string
		for _, v := range m.Graph.Inputs {
			names = append(names, v.Name)
		}
		if _, err := Differentiate(m, Options{Params: names, Loss: "loss", NoPrepare: !c.whole}); err != nil {
			t.Errorf("%s/%s: %v", c.row, c.name, err)
		} else if racing := traits.Racing(m.Graph); len(racing) > 0 {
			t.Errorf("%s/%s: %q race", c.row, c.name, racing)
		}
	}
}

// racers are bodies that add, somewhere in the training graph of Σ b², many
// elements at a time to places that repeat. Written with ScatterND, the three
// large ones differ from run to run on two cores. Of "init i int64[…] below N" the
// elements are drawn. The gradient of u, which is read and not added, is not asked
// for.
var racers = map[string]string{
	"Gather":                     "in x F[4,8,64]\ninit i int64[192] below 4\nb = Gather(x, i)",
	"Gather, other axis":         "in x F[64,4,64]\ninit i int64[48] below 4\nb = Gather(x, i) {axis=1}",
	"Gather of a gathered value": "in x F[64,512]\ninit i int64[48] below 4\ninit j int64[192] below 4\na = Gather(x, i)\nb = Gather(a, j)",
	"GatherElements":             "in x F[4,512]\ninit i int64[192,512] below 4\nb = GatherElements(x, i)",
	"GatherND, few rows":         "in x F[4,128,128]\ninit i int64[96,1] below 4\nb = GatherND(x, i)",
	"GatherND, many rows":        "in x F[300,512]\ninit i int64[192,1] below 4\nb = GatherND(x, i)",
	"GatherND, twice":            "in x F[300,512]\ninit i int64[192,1] below 4\ninit j int64[192,1] below 4\nc = GatherND(x, i)\nd = GatherND(x, j)\nb = Mul(c, d)",
	"GatherND, tuples":           "in x F[4,4,512]\ninit i int64[192,2] below 2\nb = GatherND(x, i)",
	"GatherND, many tuples":      "in x F[40,40,128]\ninit i int64[1000,2] below 2\nb = GatherND(x, i)",
	"GatherND, batch":            "in x F[2,4,512]\ninit i int64[2,96,1] below 2\nb = GatherND(x, i) {batch_dims=1}",
	"GatherND, elements":         "in x F[4,4]\ninit i int64[100000,2] below 2\nb = GatherND(x, i)",
	"ScatterND, add":             "in x F[4,16384]\nin u F[96,16384]\ninit i int64[96,1] below 4\nb = ScatterND(x, i, u) {reduction=\"add\"}",
	"ScatterND, add to tuples":   "in x F[4,4,512]\nin u F[192,512]\ninit i int64[192,2] below 2\nb = ScatterND(x, i, u) {reduction=\"add\"}",
	"ScatterND, mul":             "in x F[4,4096]\nin u F[24,4096]\ninit i int64[24,1] below 4\nb = ScatterND(x, i, u) {reduction=\"mul\"}",
	"ScatterND, max":             "in x F[4,512]\nin u F[192,512]\ninit i int64[192,1] below 4\nb = ScatterND(x, i, u) {reduction=\"max\"}",
	"ScatterND, min":             "in x F[4,512]\nin u F[192,512]\ninit i int64[192,1] below 4\nb = ScatterND(x, i, u) {reduction=\"min\"}",
	"ScatterElements, add":       "in x F[4,512]\nin u F[192,512]\ninit i int64[192,512] below 4\nb = ScatterElements(x, i, u) {reduction=\"add\"}",
	"ScatterElements, max":       "in x F[4,512]\nin u F[192,512]\ninit i int64[192,512] below 4\nb = ScatterElements(x, i, u) {reduction=\"max\"}",
	"MaxPool":                    "in x F[1,4,64,64]\nb = MaxPool(x) {kernel_shape=[5, 5]}",
	"MaxUnpool":                  "in x F[1,8,64,64]\ninit i int64[1,8,64,64] below 131072\nb = MaxUnpool(x, i) {kernel_shape=[2, 2], strides=[2, 2]}",
	"LogSoftmax":                 "in x F[128,256]\ninit i int64[128,4] below 256\na = LogSoftmax(x)\nb = GatherElements(a, i) {axis=1}",
	"SoftmaxCrossEntropyLoss":    "in x F[256,256]\ninit i int64[256] below 256\nb = SoftmaxCrossEntropyLoss(x, i)",
	"Pad":                        "in x F[64,256]\ninit p int64[4] = [40, 40, 40, 40]\nb = Pad(x, p) {mode=\"reflect\"}",
	"Slice":                      "in x F[64,512]\ninit a int64[1] = [1]\ninit e int64[1] = [400]\ninit one int64[1] = [1]\ninit s int64[1] = [3]\nb = Slice(x, a, e, one, s)",
	"TopK":                       "in x F[64,512]\ninit k int64[1] = [40]\nb, j = TopK(x, k)",
	"GridSample":                 "in x F[1,8,32,32]\ninit i int64[1,64,64,2] below 4\ninit h float32[] = 1.3\nc = Cast(i) {to=1}\ng = Sub(c, h)\nb = GridSample(x, g)",
	"Resize":                     "in x F[1,8,32,32]\ninit s float32[4] = [1, 1, 2.5, 2.5]\nb = Resize(x, _, s) {mode=\"linear\"}",
	"Col2Im":                     "in x F[1,36,1024]\ninit i int64[2] = [34, 34]\ninit k int64[2] = [3, 3]\nb = Col2Im(x, i, k)",
	"AveragePool":                "in x F[1,4,64,64]\nb = AveragePool(x) {kernel_shape=[5, 5]}",
}

// drawn writes out the elements of initializers that a body says to draw.
func drawn(body string) string {
	rng := rand.New(rand.NewPCG(5, 8))
	lines := strings.Split(body, "\n")
	for k, line := range lines {
		head, limit, ok := strings.Cut(line, " below ")
		if !ok {
			continue
		}
		count, below := 1, 0
		_, shape, _ := strings.Cut(head, "[")
		for _, d := range strings.Split(strings.TrimSuffix(shape, "]"), ",") {
			n := 0
			fmt.Sscan(d, &n)
			count *= n
		}
		fmt.Sscan(limit, &below)
		list := make([]string, count)
		for i := range list {
			list[i] = fmt.Sprint(rng.IntN(below))
		}
		lines[k] = head + " = [" + strings.Join(list, ", ") + "]"
	}
	return strings.Join(lines, "\n")
}

// TestScattersAreTheSameInEveryRun: 50 runs with 8 threads give the same bits, and
// those of one thread, unless a product is among the nodes: its sum is put together
// otherwise where threads share it.
func TestScattersAreTheSameInEveryRun(t *testing.T) {
	for name, body := range racers {
		t.Run(name, func(t *testing.T) {
			c := gradCase{row: name, body: drawn(body) + "\ny = Mul(b, b)", f32: true, whole: true}
			m := c.model(t)
			var names []string
			for _, v := range m.Graph.Inputs {
				if v.Name != "u" {
					names = append(names, v.Name)
				}
			}
			inputs := ortest.RandomInputs(m)
			if _, err := Differentiate(m, Options{Params: names, Loss: "loss"}); err != nil {
				t.Fatal(err)
			}
			alone := ortest.Run(t, m, 99, inputs)
			s := ortest.OpenThreads(t, m, 99, 8, inputs)
			first := s.Run()
			for _, name := range names {
				got, want := first[name+".grad"], alone[name+".grad"]
				if i := differs(got, want); i >= 0 && (operators(m)["MatMul"] == 0 || math.Abs(got[i]-want[i]) > 1e-5*maxAbs(want)) {
					t.Fatalf("%s.grad differs at %d: %g with 8 threads, %g with one\n%.3000s", name, i, got[i], want[i], m.Text())
				}
			}
			runs := 50
			if testing.Short() {
				runs = 10
			}
			for run := range runs - 1 {
				for output, got := range s.Run() {
					if i := differs(got, first[output]); i >= 0 {
						t.Fatalf("run %d: %s differs at %d: %g, in the first run %g\n%.3000s", run+2, output, i, got[i], first[output][i], m.Text())
					}
				}
			}
		})
	}
}

// differs is the first place at which two lists have other bits, -1 for none.
func differs(a, b []float64) int {
	if len(a) != len(b) {
		return 0
	}
	for i := range a {
		if math.Float64bits(a[i]) != math.Float64bits(b[i]) {
			return i
		}
	}
	return -1
}

// TestScatterNDKeepsItsMeaning: what replaces one gives what it gives.
func TestScatterNDKeepsItsMeaning(t *testing.T) {
	for _, reduction := range []string{"add", "mul", "max", "min"} {
		for name, body := range map[string]string{
			"rows":     "init i int64[4,1] = [2, 0, -1, 2]\ninit x float32[3,2] = [1, 2, 3, 4, 5, 6]\nin u float32[4,2]",
			"tuples":   "init i int64[2,2,2] = [2, 0, -1, 1, 0, -2, 2, 0]\ninit x float32[3,2,2] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]\nin u float32[2,2,2]",
			"elements": "init i int64[3,2] = [2, 0, -1, -2, 0, 1]\ninit x float32[3,2] = [1, 2, 3, 4, 5, 6]\nin u float32[3]",
			"one":      "init i int64[1] = [-1]\ninit x float32[3,2] = [1, 2, 3, 4, 5, 6]\nin u float32[2]",
			"free":     "init i int64[2,2,2] = [1, 0, -1, 1, 0, -1, 1, 0]\nin x float32[n,n,m]\nin u float32[2,2,m]",
			"nothing":  "init i int64[0,1] = []\ninit x float32[3,2] = [1, 2, 3, 4, 5, 6]\nin u float32[0,2]",
		} {
			m := parseGraph(t, body+"\ninit w float32[1] = [2]\nv = Mul(u, w)\ny = ScatterND(x, i, v) {reduction=\""+reduction+"\"}\nloss = ReduceSum(y) {keepdims=0}", "loss float32", "y float32")
			inputs := ortest.RandomInputs(m)
			want := ortest.Run(t, m, 0, inputs)["y"]
			if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil {
				t.Errorf("%s, %s: %v", reduction, name, err)
				continue
			}
			if racing := traits.Racing(m.Graph); len(racing) > 0 {
				t.Errorf("%s, %s: %q race", reduction, name, racing)
			}
			inputs["w"] = onnx.Float32Tensor([]float32{2}, 1)
			if got := ortest.Run(t, m, 0, inputs)["y"]; differs(got, want) >= 0 {
				t.Errorf("%s, %s: %v, want %v", reduction, name, got, want)
			}
		}
	}
}
