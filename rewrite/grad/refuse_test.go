package grad

import (
	"errors"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx/onnxpb"
)

const weightsOfLSTM = "in w F[1,8,2]\nin r F[1,8,2]\n"

// TestRefusedForms: what a rule does not cover is one line that says what, and
// where a number would help, which.
func TestRefusedForms(t *testing.T) {
	cases := []struct{ name, body, want string }{
		{"free length", "in x F[seq,2,2]\n" + weightsOfLSTM + "y = LSTM(x, w, r) {hidden_size=2}", "give --dim"},
		{"peepholes", "in x F[3,2,2]\nin p F[1,6]\n" + weightsOfLSTM + "y = LSTM(x, w, r, _, _, _, _, p) {hidden_size=2}", "peephole"},
		{"activation", "in x F[3,2,2]\n" + weightsOfLSTM + "y = LSTM(x, w, r) {hidden_size=2, activations=[\"Gelu\", \"Tanh\", \"Tanh\"]}", "Gelu"},
		{"activation without its numbers", "in x F[3,2,2]\n" + weightsOfLSTM + "y = LSTM(x, w, r) {hidden_size=2, activations=[\"Affine\", \"Tanh\", \"Tanh\"]}", "activation_alpha"},
		{"clip", "in x F[3,2,2]\n" + weightsOfLSTM + "y = LSTM(x, w, r) {hidden_size=2, clip=1.0}", "export the model without clip"},
		{"free stride", "in x F[1,1,n]\nin w F[1,1,2]\ny = Conv(x, w) {strides=[2]}", "give --dim"},
		{"rest of a stride", "in x F[1,1,4]\nin w F[1,1,2]\ny = ConvTranspose(x, w) {dilations=[4], output_padding=[3]}", "output_padding 3 along axis 2, whose stride is 1"},
		{"column order", "in x F[1,1,4,4]\ny, i = MaxPool(x) {kernel_shape=[2, 2], storage_order=1}", "storage_order"},
		{"pool of elements apart, padded by rule", "in x F[1,1,8]\ny = AveragePool(x) {kernel_shape=[2], dilations=[3], auto_pad=\"SAME_UPPER\"}", "export with pads"},
		{"windows that ONNX Runtime moves", "in x F[1,1,8]\nin w F[1,1,1]\ny = Conv(x, w) {auto_pad=\"SAME_UPPER\", strides=[4]}", "export with pads"},
		{"pool whose windows ONNX Runtime moves", "in x F[1,1,6]\ny = LpPool(x) {kernel_shape=[1], strides=[3], auto_pad=\"SAME_UPPER\"}", "export with pads"},
		{"free diagonal", "in x F[n,n]\ny = Einsum(x) {equation=\"ii->i\"}", "give --dim"},
		{"half a spectrum of another length", "in x F[2,5,2]\ninit n int64[] = 4\ny = DFT(x, n) {inverse=1, onesided=1}", "to 4 places of 5"},
		{"free image of regions", "in x F[1,1,h,6]\ninit r F[1,4] = [0, 0, 4, 4]\ninit b int64[1] = [0]\ny = RoiAlign(x, r, b) {sampling_ratio=2}", "give --dim"},
		{"adaptive sampling", rois("1") + "y = RoiAlign(x, r, b)", "export it with a fixed number"},
		{"largest sample", rois("1") + "y = RoiAlign(x, r, b) {mode=\"max\", sampling_ratio=2}", "only avg"},
		{"causal over other keys", "in x F[1,2,4]\nin k F[1,3,4]\ny = com.microsoft.MultiHeadAttention(x, k, k) {num_heads=1, unidirectional=1}", "3 keys for 2 queries"},
		{"keys in a window", "in x F[1,1,2,2]\ny = Attention(x, x, x) {left_window_size=1}", "a sliding window"},
		{"pads by a free extent", "in x F[2,n]\ninit z int64[3] = [0, 0, 0]\ninit b int64[1] = [1]\nn = Shape(x) {start=1}\np = Concat(z, n) {axis=0}\ny = Pad(x, p) {mode=\"reflect\"}", "give --dim where"},
		{"free resize", "in x F[1,1,n]\ninit s float32[3] = [1, 1, 2]\ny = Resize(x, _, s)", "give --dim"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			g := gradCase{body: c.body, f32: true, opset: 23}
			m := g.model(t)
			_, err := Differentiate(m, Options{Params: []string{"x"}, Loss: "loss", NoPrepare: true})
			var refused *UnsupportedError
			if !errors.As(err, &refused) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %v, want one line with %q", err, c.want)
			}
		})
	}
}

// TestPeepholesAlone: peephole weights that alone are to be trained are what is refused; the loss
// was said not to depend on them.
func TestPeepholesAlone(t *testing.T) {
	g := gradCase{body: "in x F[3,2,2]\nin p F[1,6]\n" + weightsOfLSTM + "y = LSTM(x, w, r, _, _, _, _, p) {hidden_size=2}", f32: true}
	_, err := Differentiate(g.model(t), Options{Params: []string{"p"}, Loss: "loss", NoPrepare: true})
	if err == nil || !strings.Contains(err.Error(), "peephole") {
		t.Errorf("error %v", err)
	}
}

// TestCapturesAreRefused: a gradient that would have to pass a body which only
// captures the value is an error and not a silent zero.
func TestCapturesAreRefused(t *testing.T) {
	g := gradCase{f32: true, body: `in x F[2]
init c bool[] = true
h = Neg(x)
y = If(c) {then_branch=graph t {
p = Abs(h)
out p float32[2]
}, else_branch=graph e {
q = Exp(h)
out q float32[2]
}}`}
	m := g.model(t)
	_, err := Differentiate(m, Options{Params: []string{"x"}, Loss: "loss", NoPrepare: true})
	var refused *UnsupportedError
	if !errors.As(err, &refused) || refused.Op != "If" {
		t.Errorf("error %v", err)
	}
}

// TestLengthFixedByDim: a free sequence length is fixed by a number.
func TestLengthFixedByDim(t *testing.T) {
	g := gradCase{body: "in x F[seq,2,2]\n" + weightsOfLSTM + "y = LSTM(x, w, r) {hidden_size=2}", f32: true}
	m := g.model(t)
	_, err := Differentiate(m, Options{Params: []string{"x", "w"}, Loss: "loss", Dims: map[string]int64{"seq": 3}})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestMissedInputs: an input that is data and to which a rule has no derivative is
// refused once it depends on what trains, and never left out; a setting is not.
func TestMissedInputs(t *testing.T) {
	cases := []struct{ name, body, want string }{
		{"weights of classes", "in x F[3,4]\ninit z int64[1] = [0]\ninit t int64[3] = [0, 1, 3]\nw = ReduceSum(x, z) {keepdims=0}\ny = SoftmaxCrossEntropyLoss(x, t, w)", "input 2"},
		{"a ratio", "in x F[3,4]\nr = ReduceMax(x) {keepdims=0}\ny = Dropout(x, r)", ""},
	}
	for _, c := range cases {
		g := gradCase{body: c.body, f32: true, opset: 23}
		_, err := Differentiate(g.model(t), Options{Params: []string{"x"}, Loss: "loss", NoPrepare: true})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
		}
	}
}

// TestOddOutputs: an output that is listed twice is one loss; a sparse initializer is
// refused by name.
func TestOddOutputs(t *testing.T) {
	m := parseGraph(t, "init w float32[3] = [1, 2, 3]\nloss = ReduceSum(w) {keepdims=0}", "loss float32[]")
	m.Graph.AddOutput(m.Graph.Value("loss"))
	if _, err := Differentiate(m, Options{Params: []string{"w"}}); err != nil || len(m.Graph.Outputs) != 2 {
		t.Errorf("%d outputs, error %v", len(m.Graph.Outputs), err)
	}
	m = parseGraph(t, "init w float32[3] = [1, 2, 3]\nloss = ReduceSum(w) {keepdims=0}", "loss float32[]")
	name := "s"
	m.Graph.Proto.SparseInitializer = append(m.Graph.Proto.SparseInitializer, &onnxpb.SparseTensorProto{Values: &onnxpb.TensorProto{Name: &name}})
	if _, err := Differentiate(m, Options{}); err == nil || !strings.Contains(err.Error(), `"s" is sparse`) {
		t.Errorf("error %v", err)
	}
}
