package grad

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
)

// smoothedLoss is PyTorch's cross entropy of scores [n,c,d] with label smoothing.
func smoothedLoss(z []float64, labels []int64, w []float64, n, c, d int, ignored int64, share float64, reduction string) []float64 {
	var each []float64
	weights := 0.0
	for i := range n {
		for k := range d {
			at := func(class int) float64 { return z[(i*c+class)*d+k] }
			label := labels[i*d+k]
			if label == ignored {
				each = append(each, 0)
				continue
			}
			sum, spread := 0.0, 0.0
			for class := range c {
				sum += math.Exp(at(class))
			}
			for class := range c {
				spread += w[class] * (math.Log(sum) - at(class)) / float64(c)
			}
			each = append(each, (1-share)*w[label]*(math.Log(sum)-at(int(label)))+share*spread)
			weights += w[label]
		}
	}
	if reduction == "none" {
		return each
	}
	total := 0.0
	for _, x := range each {
		total += x
	}
	if reduction == "mean" {
		total /= weights
	}
	return []float64{total}
}

// TestSmoothing: the share of label smoothing that the exporter leaves out of a cross
// entropy is in the training graph's loss and gradients, and a warning says so.
func TestSmoothing(t *testing.T) {
	for _, deep := range []int{0, 2} {
		for _, weighted := range []bool{false, true} {
			for _, reduction := range []string{"mean", "sum", "none"} {
				for _, note := range []string{"0.1", "1.0", "", "2.0", "%x"} {
					t.Run(fmt.Sprintf("%d/%v/%s/%s", deep, weighted, reduction, note), func(t *testing.T) {
						n, c, d := 3, 4, max(deep, 1)
						shape, labelShape, w := "3,4", "3", []float64{1, 1, 1, 1}
						if deep > 0 {
							shape, labelShape = "3,4,2", "3,2"
						}
						labels := []int64{1, 3, 0, 2, 3, 1}[:n*d]
						body := fmt.Sprintf("in z float32[%s]\ninit t int64[%s] = %s\n", shape, labelShape, strings.ReplaceAll(fmt.Sprint(labels), " ", ", "))
						inputs := "z, t"
						if weighted {
							w, inputs = []float64{1, 2, 0.5, 0}, "z, t, w"
							body += "init w float32[4] = [1, 2, 0.5, 0]\n"
						}
						body += fmt.Sprintf("each = SoftmaxCrossEntropyLoss(%s) {reduction=%q, ignore_index=3}\nsquare = Mul(each, each)\nloss = ReduceSum(square) {keepdims=0}", inputs, reduction)
						m := parseGraph(t, body, "loss float32")
						args, share := "%z, %t, None, 1, 3", 0.0
						if note != "" {
							args += ", " + note
						}
						if note == "0.1" || note == "1.0" {
							fmt.Sscan(note, &share)
						}
						noteCall(m, "each", "cross_entropy_loss.default", args)
						res, err := Differentiate(m, Options{Params: []string{"z"}})
						if err != nil {
							t.Fatal(err)
						}
						if warned := strings.Contains(strings.Join(res.Warnings, "\n"), "label smoothing"); warned != (share > 0) {
							t.Errorf("warns: %v, of a share of %v", warned, share)
						}
						z, narrow := make([]float64, n*c*d), make([]float32, n*c*d)
						for i := range z {
							narrow[i] = float32(i*7%11)/4 - 1
							z[i] = float64(narrow[i])
						}
						dims := []int64{3, 4, 2}[:2+deep/2]
						got := ortest.Run(t, m, 1, map[string]*onnx.Tensor{"z": onnx.Float32Tensor(narrow, dims...)})
						loss := func() (sum float64) {
							for _, x := range smoothedLoss(z, labels, w, n, c, d, 3, share, reduction) {
								sum += x * x
							}
							return sum
						}
						if want := loss(); math.Abs(got["loss"][0]-want) > 1e-5*max(1, want) {
							t.Errorf("loss %v, want %v", got["loss"][0], want)
						}
						const h = 1e-5
						for i, x := range z {
							z[i] = x + h
							up := loss()
							z[i] = x - h
							want := (up - loss()) / (2 * h)
							z[i] = x
							if math.Abs(got["z.grad"][i]-want) > 1e-4*max(1, math.Abs(want)) {
								t.Errorf("gradient %v at %d, want %v", got["z.grad"][i], i, want)
							}
						}
					})
				}
			}
		}
	}
}

// TestSmoothingWithoutGradient: a smoothed loss that is returned beside the one that trains
// is smoothed too.
func TestSmoothingWithoutGradient(t *testing.T) {
	m := parseGraph(t, "in z float32[2,3]\ninit t int64[2] = [0, 2]\nother = SoftmaxCrossEntropyLoss(z, t) {ignore_index=-100}\nq = Mul(z, z)\nloss = ReduceSum(q) {keepdims=0}", "loss float32", "other float32")
	noteCall(m, "other", "cross_entropy_loss.default", "%z, %t, None, 1, -100, 0.25")
	if _, err := Differentiate(m, Options{Params: []string{"z"}, Loss: "loss"}); err != nil {
		t.Fatal(err)
	}
	z := []float64{1, 2, 0, -1, 0.5, 3}
	got := ortest.Run(t, m, 1, map[string]*onnx.Tensor{"z": onnx.Float32Tensor([]float32{1, 2, 0, -1, 0.5, 3}, 2, 3)})
	if want := smoothedLoss(z, []int64{0, 2}, []float64{1, 1, 1}, 2, 3, 1, -100, 0.25, "mean")[0]; !near(got["other"][0], want) {
		t.Errorf("%v, want %v", got["other"][0], want)
	}
}

// TestDivisors: a pooling whose divisor the exporter left out is named.
func TestDivisors(t *testing.T) {
	for args, warns := range map[string]bool{
		"%x, [2, 2], [2, 2], [0, 0], False, True, 1":    true,
		"%x, [2, 2], [2, 2], [0, 0], False, True, None": false,
		"%x, [2, 2], [2, 2], [0, 0], False, False":      false,
		"%x, [2, 2]": false,
	} {
		m := parseGraph(t, "in x float32[1,1,4,4]\ny = AveragePool(x) {kernel_shape=[2, 2], strides=[2, 2]}\nloss = ReduceSum(y) {keepdims=0}", "loss float32")
		noteCall(m, "y", "avg_pool2d.default", args)
		res, err := Differentiate(m, Options{Params: []string{"x"}})
		if err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(strings.Join(res.Warnings, "\n"), "divisor_override"); warned != warns {
			t.Errorf("%s: %q", args, res.Warnings)
		}
	}
}

// TestProbabilitiesAsLabels: what PyTorch takes as probabilities of classes is no file of
// ONNX, and the error says what to write.
func TestProbabilitiesAsLabels(t *testing.T) {
	m := parseGraph(t, "in z float32[3,4]\nin p float32[3,4]\nloss = SoftmaxCrossEntropyLoss(z, p)", "loss float32")
	_, err := Differentiate(m, Options{Params: []string{"z"}})
	if err == nil || !strings.Contains(err.Error(), "labels are float32, as probabilities of classes are") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v", err)
	}
}

// TestScatteredMeans: a scatter that takes means, of which the exporter writes that the last value
// counts, is named once, however many nodes it has.
func TestScatteredMeans(t *testing.T) {
	for kind, want := range map[string]bool{"mean": true, "amax": false} {
		m := parseGraph(t, "in x float32[2,2]\ninit w float32[2,2] = [1,2,3,4]\ninit i int64[2,2] = [0,0,0,1]\ninit z float32[2,2] = [0,0,0,0]\n"+
			"y = Mul(x, w)\nr = ScatterElements(z, i, z)\ns = ScatterElements(r, i, y)\nloss = ReduceMean(s) {keepdims=0}", "loss float32")
		for _, v := range []string{"r", "s"} {
			m.Graph.Value(v).Producer.SetMetadata("pkg.torch.onnx.fx_node", "%scatter_reduce : [num_users=1] = call_function[target=torch.ops.aten.scatter_reduce.two](args = (%zeros, 0, %i, %y, "+kind+"), kwargs = {include_self: False})")
		}
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if said := slices.ContainsFunc(res.Warnings, func(w string) bool { return strings.HasSuffix(w, "how many there are: scatter_reduce") }); said != want {
			t.Errorf("%s: %q", kind, res.Warnings)
		}
	}
}

// TestDropoutOfAttention: attention of a model in train() drops again, which both exporters
// write as a Dropout that does not train; one that the exporter's optimizer took out is named.
func TestDropoutOfAttention(t *testing.T) {
	for name, c := range map[string]struct {
		share, body, says string
		drops             bool
	}{
		"in train()": {"0.3", "init r float32[] = 0.3\nd = Dropout(a, r)", "1 × attention drops, since", true},
		"in eval()":  {"0.0", "init r float32[] = 0.3\nd = Dropout(a, r)", "", false},
		"removed":    {"0.3", "d = Neg(a)", "the exporter removed it", false},
	} {
		m := parseGraph(t, "in x float32[4,4]\ninit w float32[4,4] = ["+strings.TrimSuffix(strings.Repeat("1,2,3,4,", 4), ",")+"]\nq = MatMul(x, w)\na = Softmax(q)\n"+c.body+"\nz = MatMul(d, q)\nloss = ReduceMean(z) {keepdims=0}", "loss float32")
		for _, v := range []string{"a", "d", "z"} {
			noteCall(m, v, "scaled_dot_product_attention.default", "%q, %q, %q, None, "+c.share)
		}
		for _, n := range m.Graph.Nodes { // of one call
			if call := m.Graph.Value("z").Producer.TorchCall(); n.TorchCall() != "" {
				n.Proto.MetadataProps = nil
				n.Proto.MetadataProps = append(n.Proto.MetadataProps, entry("pkg.torch.onnx.fx_node", call))
			}
		}
		res, err := Differentiate(m, Options{})
		if err != nil {
			t.Fatal(err)
		}
		said := strings.Join(res.Warnings, "\n")
		if !strings.Contains(said, c.says) || c.says == "" && strings.Contains(said, "attention") {
			t.Errorf("%s: %q", name, res.Warnings)
		}
		drops := false
		for _, n := range m.Graph.Nodes {
			drops = drops || n.Is("Dropout") && n.In(2) != nil
		}
		if drops != c.drops {
			t.Errorf("%s: drops: %v", name, drops)
		}
	}
}
