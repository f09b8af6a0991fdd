package crosscheck

import (
	"bytes"
	"math/rand"
	"os"
	"path/filepath"
	"strings"
	"testing"

	onnxgo "github.com/owulveryck/onnx-go"

	"github.com/onnx-remat/remat/internal/corpus"
	"github.com/onnx-remat/remat/onnx"
)

func TestSamplesAgree(t *testing.T) {
	for _, pattern := range []string{"*.onnx", "*/*.onnx"} {
		paths, err := filepath.Glob(filepath.Join("..", "..", "testdata", "models", pattern))
		if err != nil || len(paths) == 0 {
			t.Fatal(err, "no samples")
		}
		for _, path := range paths {
			r, err := File(path)
			if err != nil {
				t.Fatal(err)
			}
			if !r.Agree() {
				t.Errorf("%s: %v\n%q", path, r, r.Differences)
			}
			if n := len(r.NotCompared); strings.Contains(r.NotCompared[n-1], "stopped") {
				t.Errorf("%s: %s", path, r.NotCompared[n-1])
			}
			t.Logf("%s: %v; not compared: %q", filepath.Base(path), r, r.NotCompared[1:])
		}
	}
}

func TestNodesAgree(t *testing.T) {
	cases, err := corpus.Nodes(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	whole := 0
	for _, c := range cases {
		m, err := c.Load()
		if err != nil {
			t.Fatal(err)
		}
		r := Compare(m, c.Model)
		if !r.Agree() {
			t.Errorf("%s: %v\n%q", c.Name, r, r.Differences)
		}
		if r.Operators == len(m.Graph.Nodes) {
			whole++
		} else {
			t.Logf("%s: %q", c.Name, r.NotCompared)
		}
		m.Close()
	}
	t.Logf("%d of %d read to the end", whole, len(cases))
	if whole < len(cases)*95/100 {
		t.Error("onnx-go reads too few to the end")
	}
}

// TestLargeFilesAreTrimmed: in large files only small tensors are compared.
func TestLargeFilesAreTrimmed(t *testing.T) {
	m, err := onnx.Parse("model opset=20\ngraph g {\nin x float32[600,600]\ninit w float32[600,600] = zeros\ninit s float32[] = 2.0\na = Add(x, w)\nb = Add(a, s)\nout b float32[600,600]\n}")
	if err != nil {
		t.Fatal(err)
	}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	for l, want := range map[limit]int{limitFor(1 << 20): 2, limitFor(1 << 30): 1} {
		if r := compareWithin(m, data, l); !r.Agree() || r.Initializers != want || r.Operators != 2 {
			t.Errorf("limit %d: %v %q %q", l, r, r.Differences, r.NotCompared)
		}
	}
}

// TestDamageIsContained gives onnx-go whatever our reader accepts of damaged
// files.
func TestDamageIsContained(t *testing.T) {
	good, err := os.ReadFile(filepath.Join("..", "..", "testdata", "models", "lstm_char.ts.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewSource(1))
	stopped := 0
	for range 300 {
		data := bytes.Clone(good)
		data[rng.Intn(len(data))] ^= 1 << rng.Intn(8)
		m, err := onnx.Decode(data, ".")
		if err != nil || m.Check() != nil {
			continue
		}
		r := Compare(m, data)
		for _, line := range append(r.NotCompared, r.Differences...) {
			if strings.Contains(line, "\n") {
				t.Errorf("more than one line: %q", line)
			}
			if strings.Contains(line, "stopped") {
				stopped++
			}
		}
	}
	t.Logf("onnx-go stopped at %d files", stopped)
}

// TestPanicIsContained: an initializer that onnx-go was not kept from.
func TestPanicIsContained(t *testing.T) {
	m, err := onnx.Parse("model opset=20\ngraph g {\ninit w bool[2,4] = [true, true, false, true, true, true, false, true]\na = Not(w)\nout a bool[2,4]\n}")
	if err != nil {
		t.Fatal(err)
	}
	data, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	err = unmarshal(onnxgo.NewModel(newRecorder(m, maxTensor)), data)
	if err == nil || !strings.Contains(err.Error(), "panicked") {
		t.Errorf("got %v, want a contained panic", err)
	}
}

// TestDifferences changes one thing at a time in our model and expects it found.
func TestDifferences(t *testing.T) {
	const text = `model ir=10 opset=20
graph g {
  in x float32[2]
  init w float32[2] = [1.0, 2.0]
  a = Add(x, w)
  b = Softmax(a) {axis=0}
  out b float32[2]
}
`
	parse := func() *onnx.Model {
		m, err := onnx.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	data, err := parse().Encode()
	if err != nil {
		t.Fatal(err)
	}
	if r := Compare(parse(), data); !r.Agree() || r.Operators != 2 || r.Attributes != 1 || r.Initializers != 1 || r.Inputs != 1 || r.Outputs != 1 {
		t.Errorf("the same model: %v %q", r, r.Differences)
	}
	for name, change := range map[string]func(g *onnx.Graph){
		"operator":    func(g *onnx.Graph) { g.Nodes[0].SetOpType("Sub") },
		"input":       func(g *onnx.Graph) { g.Nodes[0].SetInput(1, g.Value("x")) },
		"attribute":   func(g *onnx.Graph) { g.Nodes[1].SetAttr(onnx.IntAttr("axis", 1)) },
		"type":        func(g *onnx.Graph) { g.Nodes[1].SetAttr(onnx.FloatAttr("axis", 0)) },
		"missing":     func(g *onnx.Graph) { g.Nodes[1].RemoveAttr("axis") },
		"initializer": func(g *onnx.Graph) { g.Value("w").Init.Proto.RawData[0] ^= 1 },
		"shape":       func(g *onnx.Graph) { g.Value("w").Init.Proto.Dims = []int64{2, 1} },
		"output":      func(g *onnx.Graph) { g.SetOutput(0, g.Value("a")) },
		"name":        func(g *onnx.Graph) { g.Rename(g.Value("a"), "c") },
		"order":       func(g *onnx.Graph) { g.Nodes[0], g.Nodes[1] = g.Nodes[1], g.Nodes[0] },
		"more":        func(g *onnx.Graph) { g.AddOutput(g.Value("a")) },
	} {
		m := parse()
		change(m.Graph)
		if r := Compare(m, data); r.Agree() {
			t.Errorf("%s: the change is not found: %v", name, r)
		}
	}
}
