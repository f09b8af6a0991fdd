package rewrite

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// undividable are samples whose fixed batch is inside something that is not
// followed, with what is said of it. The list may only shrink.
var undividable = map[string]string{
	// The mask is a constant with a row for every sample.
	"gpt2_tiny.dyn.onnx": "do not broadcast", "gpt2_tiny_mask.ts.onnx": "samples of the batch by their places", "gpt2_tiny_mask.tseval.onnx": "samples of the batch by their places",
	"llama_tiny.dyn.onnx": "do not broadcast",
	// The initial state is a constant with a row for every sample.
	"lstm_char.ts.onnx": "do not broadcast",
	// Its rows are gathered by constant indices.
	"bert_tiny.ts.onnx": "samples of the batch by their places",
	// The batch is the inner one of two axes that are merged.
	"encoder_postln.dyn.onnx": "do not broadcast", "encoder_postln.ts.onnx": "do not broadcast",
}

// TestDivideBatch: every exported sample, with its batch fixed or free, becomes
// one for a part of it, and its loss stays a scalar.
func TestDivideBatch(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("..", "testdata", "models", "*.onnx"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no samples: %v", err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			m, err := onnx.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			dims := map[string]int64{}
			for _, v := range m.Graph.Inputs {
				for _, d := range v.Type.Shape {
					for i, s := range d.Symbols() {
						dims[s] = int64(4 << i)
					}
				}
			}
			lead := m.Graph.Inputs[0].Type.Shape[0].Subst(dims)
			parts, ok := lead.Int()
			if !ok || parts < 2 {
				t.Skipf("a batch of %s", lead)
			}
			batch, err := DivideBatch(m, dims, parts)
			if why, listed := undividable[name]; listed {
				var refused *BatchError
				if !errors.As(err, &refused) || !strings.Contains(err.Error(), why) {
					t.Fatalf("%v, want the listed reason %q", err, why)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := m.Graph.Inputs[0].Type.Shape[0]; batch != parts || !got.Is(1) {
				t.Errorf("batch %d, input of %s, want %d and 1", batch, got, parts)
			}
			if err := m.Check(); err != nil {
				t.Error(err)
			}
			if _, err := infer.Model(m, infer.Options{Dims: dims, Strict: true}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDivideBatchRefuses: a batch inside a constant, and sizes that do not fit.
func TestDivideBatchRefuses(t *testing.T) {
	m := onnx.NewModel("inside", 20)
	x := m.Graph.AddInput("x", onnx.TensorOf(onnx.Float32, onnx.StaticShape(4, 3)))
	c := m.Graph.AddConstant("c", onnx.Float32Tensor(make([]float32, 12), 4, 3))
	n := m.Graph.NewNode("", "Add", "add", []*onnx.Value{x, c}, []string{"y"})
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Outputs[0])
	for _, parts := range []int64{2, 3} {
		copied, err := m.Clone()
		if err != nil {
			t.Fatal(err)
		}
		var refused *BatchError
		if _, err := DivideBatch(copied, nil, parts); !errors.As(err, &refused) {
			t.Errorf("in %d parts: %v, want a BatchError", parts, err)
		}
	}
}

// TestDivideBatchPicks: what takes samples by their places would take others of a part of the batch.
func TestDivideBatchPicks(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"some by index", "init p int64[4] = [3,1,0,0]\ny = Gather(h, p)", "takes samples of the batch by their places"},
		{"the first", "init z int64[1] = [0]\ninit o int64[1] = [1]\ny = Slice(h, z, o, z)", "takes samples of the batch by their places"},
		{"of each sample", "init p int64[2] = [2,0]\ny = Gather(h, p) {axis=1}", ""},
	} {
		m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[4,3]\nh = Relu(x)\n" + c.body + "\nout y float32\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		_, err = DivideBatch(m, nil, 2)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestDivideBatchSquare: a mask of as many queries and keys as there are samples is
// no batch.
func TestDivideBatchSquare(t *testing.T) {
	for _, parts := range []int64{2, 4} {
		m, err := onnx.Parse(`model ir=8 opset=20
graph g {
in x float32[4,4,3]
init one float32[1,1] = [1]
init s int64[2] = [4, 4]
e = Expand(one, s)
m = Trilu(e) {upper=0}
t = Transpose(x) {perm=[0, 2, 1]}
q = MatMul(x, t)
y = Mul(q, m)
out y float32
}
`)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DivideBatch(m, nil, parts); err != nil {
			t.Fatalf("%d parts: %v", parts, err)
		}
		if got, want := m.Graph.Value("m").Type.Shape.String(), "[4,4]"; got != want {
			t.Errorf("%d parts: a mask of %s, want %s", parts, got, want)
		}
		if d := m.Graph.Value("y").Type.Shape[0]; !d.Is(4 / parts) {
			t.Errorf("%d parts: a batch of %s", parts, d)
		}
	}
}
