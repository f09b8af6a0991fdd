package grad

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// TestExtremesInHalf: in a model that computes in half backward compares float32 values with the
// extreme of these very values, and its gradients are those of the model in float32.
func TestExtremesInHalf(t *testing.T) {
	const head = "in x HALF[4,6]\ninit w HALF[6,6] = [0.5,-1,0.25,2,-0.125,1,1,0.5,-2,0.75,-1,0.25,3,-0.5,1,0.125,0.25,-1.5,-0.75,2,1,-1,0.5,0.25,1.5,-0.25,-1,0.375,2,-0.5,0.25,1,-0.5,1,-2,0.75]\n" +
		"init third HALF[] = [0.33325195]\ninit zeros HALF[4,6] = [0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]\n" +
		"init at int64[4,6] = [0,1,2,0,1,2,0,1,2,0,1,2,0,1,2,0,1,2,0,1,2,0,1,2]\ninit last int64[1] = [-1]\n" +
		"p = MatMul(x, w)\nh = Mul(p, third)\n"
	for _, body := range []string{
		"y = ReduceMax(h, last)",
		"y = ReduceMin(h, last) {keepdims=0}",
		"f = Cast(h) {to=1}\ng = ReduceMin(f, last)\ny = Cast(g) {to=HALFCODE}",
		"o = Mul(p, p)\ny = Max(h, o)",
		"o = Mul(p, third)\ny = Min(o, h, p)",
		"y = ScatterElements(zeros, at, h) {axis=1, reduction=\"max\"}",
		"i = Unsqueeze(h, last)\ny = GlobalMaxPool(i)",
	} {
		gradient := func(half string, code int) []float64 {
			text := head + body + "\nf32 = Cast(y) {to=1}\ne = Exp(f32)\nloss = ReduceMean(e) {keepdims=0}"
			m := parseGraph(t, strings.NewReplacer("HALFCODE", fmt.Sprint(code), "HALF", half).Replace(text), "loss float32")
			res, err := Differentiate(m, Options{Params: []string{"w"}})
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			equal := 0
			for _, n := range m.Graph.Nodes {
				if !n.Is("Equal") || half == "float32" {
					continue
				}
				equal++
				extreme := n.In(1).Producer
				for ; extreme.Is("GatherElements"); extreme = extreme.In(0).Producer {
				}
				if n.In(0).Type.DType != onnx.Float32 || n.In(1).Type.DType != onnx.Float32 || !slices.Contains(extreme.Inputs, n.In(0)) {
					t.Errorf("%s: %s compares %s, with an extreme of another value:\n%s", body, n.Label(), n.In(0).Type, m.Text())
				}
			}
			if half != "float32" && equal == 0 {
				t.Errorf("%s: nothing is compared", body)
			}
			x := make([]float64, 24)
			for i := range x {
				x[i] = math.Round(math.Sin(float64(7*i))*512) / 512
			}
			dtype := m.Graph.Value("x").Type.DType
			values := maps.Collect(res.Values())
			values["x"] = onnx.FloatTensor(dtype, x, 4, 6)
			return ortest.Run(t, m, 1, values)["w.grad"]
		}
		want := gradient("float32", 1)
		got := gradient("float16", 10)
		most := 0.0
		for _, v := range want {
			most = max(most, math.Abs(v))
		}
		for i, v := range want {
			if !(math.Abs(got[i]-v) <= 0.01*most) {
				t.Errorf("%s: element %d of the gradient is %v, in float32 %v", body, i, got[i], v)
			}
		}
	}
}

// scattered reduces parts of x, times w, along the last axis, where two go to one place. What is before and
// behind it has kernels for half numbers.
func scattered(reduction string) string {
	return "init k int64[2,2,3] = [0,0,3,1,2,1,5,5,0,4,4,4]\ninit ends int64[2] = [3,3]\ni = Mul(x, w)\na, b = Split(i, ends) {axis=2}\n" +
		"s = ScatterElements(x, k, a) {axis=2, reduction=\"" + reduction + "\"}\ny = Transpose(s) {perm=[2,1,0]}"
}

// TestSumsInHalf: what is added up at places that are named several times is so in float32, as
// ONNX Runtime's CPU provider adds up no half numbers.
func TestSumsInHalf(t *testing.T) {
	for _, body := range []string{
		"i = Mul(x, w)\ny = MaxPool(i) {kernel_shape=[3], strides=[1], pads=[1,1]}",
		"init pads int64[6] = [0,0,2,0,0,1]\ni = Mul(x, w)\ny = Pad(i, pads) {mode=\"reflect\"}",
		"init pads int64[6] = [0,0,2,0,0,1]\ni = Mul(x, w)\ny = Pad(i, pads) {mode=\"edge\"}",
		scattered("add"), scattered("mul"), scattered("max"),
		"init t int64[3,1] = [0,1,0]\ninit p int64[3] = [0, 1, 0]\ni = Mul(x, w)\nu = Gather(i, p)\ny = ScatterND(x, t, u) {reduction=\"add\"}",
	} {
		gradient := func(half string) []float64 {
			m := parseGraph(t, strings.ReplaceAll("in x HALF[2,2,6]\ninit w HALF[2,2,6] = [1,2,3,4,5,6,7,8,9,10,11,12,1,2,3,4,5,6,7,8,9,10,11,12]\n"+body+"\nf32 = Cast(y) {to=1}\nq = Mul(f32, f32)\nloss = ReduceMean(q) {keepdims=0}", "HALF", half), "loss float32")
			res, err := Differentiate(m, Options{})
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			x := make([]float64, 24)
			for i := range x {
				x[i] = float64((5*i)%7-3) / 8
			}
			values := maps.Collect(res.Values())
			values["x"] = onnx.FloatTensor(m.Graph.Value("x").Type.DType, x, 2, 2, 6)
			return ortest.Run(t, m, 1, values)["w.grad"]
		}
		want, got := gradient("float32"), gradient("float16")
		for i, v := range want {
			if !(math.Abs(got[i]-v) <= 2e-3*(math.Abs(v)+0.1)) {
				t.Errorf("%s: element %d of the gradient is %v, in float32 %v", body, i, got[i], v)
			}
		}
	}
}

// TestNormsOfTwoTypes: a BatchNormalization of half numbers may have a float32 scale, bias and
// statistics, as under autocast, or a scale and bias, as dynamo's exporter writes those that a
// module does not have. Gradients are those of the model in float32, each in its parameter's type.
func TestNormsOfTwoTypes(t *testing.T) {
	for _, body := range []string{
		"init m float32[3] = [0.1,-0.2,0.3]\ninit v float32[3] = [1.5,0.7,2]\ny = BatchNormalization(i, s, b, m, v)",
		"init m HALF[3] = [0.1,-0.2,0.3]\ninit v HALF[3] = [1.5,0.7,2]\ny = BatchNormalization(i, s, b, m, v)",
		"init m HALF[3] = [0.1,-0.2,0.3]\ninit v HALF[3] = [1.5,0.7,2]\ny, rm, rv = BatchNormalization(i, s, b, m, v) {training_mode=1}",
	} {
		gradients := func(half string) map[string][]float64 {
			m := parseGraph(t, strings.ReplaceAll("in x HALF[2,3,4]\ninit w HALF[3,4] = [1,2,3,4,5,6,7,8,9,10,11,12]\ninit s float32[3] = [1,2,0.5]\ninit b float32[3] = [0.1,0.2,-0.5]\n"+
				"i = Mul(x, w)\n"+body+"\nf32 = Cast(y) {to=1}\ne = Exp(f32)\nloss = ReduceMean(e) {keepdims=0}", "HALF", half), "loss float32")
			res, err := Differentiate(m, Options{Params: []string{"w", "s", "b"}})
			if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			for _, name := range []string{"w", "s", "b"} {
				if got, want := m.Graph.Value(name+".grad").Type.DType, m.Graph.Value(name).Type.DType; got != want {
					t.Errorf("%s: the gradient of %s is %s, want %s", body, name, got, want)
				}
			}
			x := make([]float64, 24)
			for i := range x {
				x[i] = float64((5*i)%7-3) / 8
			}
			values := maps.Collect(res.Values())
			values["x"] = onnx.FloatTensor(m.Graph.Value("x").Type.DType, x, 2, 3, 4)
			return ortest.Run(t, m, 1, values)
		}
		want, got := gradients("float32"), gradients("float16")
		for _, name := range []string{"w.grad", "s.grad", "b.grad"} {
			for i, v := range want[name] {
				if !(math.Abs(got[name][i]-v) <= 5e-3*(math.Abs(v)+0.1)) {
					t.Errorf("%s: element %d of %s is %v, in float32 %v", body, i, name, got[name][i], v)
				}
			}
		}
	}
}

// TestGridOfAnotherType: a GridSample may have a grid of another type than its image, as TorchScript's
// exporter writes one that divides by integers. Both get the gradients of the model in one type.
func TestGridOfAnotherType(t *testing.T) {
	for _, attributes := range []string{"", " {mode=\"cubic\", padding_mode=\"border\"}", " {padding_mode=\"reflection\", align_corners=1}"} {
		gradients := func(image, grid string) map[string][]float64 {
			to, err := onnx.ParseDType(image)
			if err != nil {
				t.Fatal(err)
			}
			m := parseGraph(t, "in x float32[1,2,3,4]\ninit w "+image+"[2,3,4] = [3,1,-2,4,0.5,2,-1,3,1,0,2,-3,4,1,-2,2,0.3,1,2,3,-1,-2,0,1]\n"+
				"init g "+grid+"[1,2,3,2] = [-0.5,0.35,0.02,-0.35,0.5,1.66,-1.5,0.3,1.52,-0.3,0.01,-1.65]\n"+
				fmt.Sprintf("xc = Cast(x) {to=%d}\n", to)+"i = Mul(xc, w)\ny = GridSample(i, g)"+attributes+
				"\nf32 = Cast(y) {to=1}\nq = Mul(f32, f32)\nloss = ReduceMean(q) {keepdims=0}", "loss float32")
			res, err := Differentiate(m, Options{Params: []string{"w", "g"}})
			if err != nil {
				t.Fatalf("%s image, %s grid%s: %v", image, grid, attributes, err)
			}
			values := maps.Collect(res.Values())
			ones := make([]float64, 24)
			for i := range ones {
				ones[i] = 1 + float64(i%3)/4
			}
			values["x"] = onnx.FloatTensor(onnx.Float32, ones, 1, 2, 3, 4)
			return ortest.Run(t, m, 1, values)
		}
		want := gradients("float32", "float32")
		for _, types := range [][2]string{{"float32", "float64"}, {"float64", "float32"}} {
			got := gradients(types[0], types[1])
			for _, name := range []string{"loss", "w.grad", "g.grad"} {
				for i, v := range want[name] {
					if !(math.Abs(got[name][i]-v) <= 1e-5*(math.Abs(v)+1)) {
						t.Errorf("%s image, %s grid%s: element %d of %s is %v, in one type %v", types[0], types[1], attributes, i, name, got[name][i], v)
					}
				}
			}
		}
	}
}
