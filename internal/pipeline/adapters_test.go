package pipeline

import (
	"encoding/json"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/adapter"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// pairedModel has a linear layer in each of two blocks, and a head beside.
const pairedModel = `model ir=9 opset=20
graph g {
in x float32[2,2]
init net.0.fc.weight float32[2,2] = [1,2,3,4]
init net.1.fc.weight float32[3,2] = [1,2,3,4,5,6]
init head.weight float32[3,2] = [1,2,3,4,5,6]
init bare float32[2,2] = [5,6,7,8]
a = MatMul(x, net.0.fc.weight)
t = Transpose(net.1.fc.weight) {perm=[1,0]}
b = MatMul(a, t)
c = MatMul(b, head.weight)
y = MatMul(c, bare)
out y float32
}
`

// pairsState writes a state: tensors that count from 1, by name, with their shapes.
func pairsState(t *testing.T, pairs string, tensors map[string][]int64) *safetensors.File {
	t.Helper()
	var infos []safetensors.Info
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		infos = append(infos, safetensors.Info{Name: name, DType: onnx.Float32, Shape: tensors[name]})
	}
	l, err := safetensors.Plan(infos, map[string]string{"format": "pt", step.AdaptersKey: pairs})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s.safetensors")
	err = l.Write(path, func(i safetensors.Info, w io.Writer) error {
		values := make([]float32, i.Bytes/4)
		for k := range values {
			values[k] = float32(k + 1)
		}
		data, err := onnx.Float32Tensor(values, i.Shape...).Bytes()
		if err == nil {
			_, err = w.Write(data)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	f, err := safetensors.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func pairsIn(t *testing.T, f *safetensors.File) (*TrainedPairs, error) {
	t.Helper()
	m, _ := ortest.Parse(t, pairedModel)
	return PairsOf(m, grad.ReadSignature(m), f, nil)
}

// TestPairsBehindReshapes: the layer of a pair is found in a file that declares no shape of what its weight becomes.
func TestPairsBehindReshapes(t *testing.T) {
	m, err := onnx.Parse(strings.NewReplacer("init bare", "init kept int64[2] = [-1,3]\ninit bare", "b = MatMul(a, t)", "u = Reshape(t, kept)\nb = MatMul(a, u)").Replace(pairedModel))
	if err != nil {
		t.Fatal(err)
	}
	f := pairsState(t, `{"net.1.fc.weight":{"r":4,"alpha":8}}`, map[string][]int64{"net.1.fc.weight.lora_A": {2, 4}, "net.1.fc.weight.lora_B": {4, 3}})
	if pairs, err := PairsOf(m, grad.ReadSignature(m), f, nil); err != nil || len(pairs.List) != 1 {
		t.Errorf("%v, %v", pairs, err)
	}
}

func TestPairsRefused(t *testing.T) {
	good := map[string][]int64{"head.weight.lora_A": {3, 4}, "head.weight.lora_B": {4, 2}}
	for pairs, c := range map[string]struct {
		tensors map[string][]int64
		want    string
	}{
		`{"head.weight":{"r":4,"alpha":8}}`:     {good, ""},
		`{`:                                     {good, "metadata remat.adapters"},
		`[1]`:                                   {good, "metadata remat.adapters"},
		`{"head.weight":{"r":0,"alpha":8}}`:     {good, "make no sense"},
		`{"head.weight":{"r":4,"alpha":-1}}`:    {good, "make no sense"},
		`{"head.weight":{"r":4,"alpha":1e999}}`: {good, "metadata remat.adapters"},
		`{"head.weight":{"r":9e18,"alpha":1}}`:  {good, "metadata remat.adapters"},
		`{"head.weight":{"r":2,"alpha":8}}`:     {good, `tensor "head.weight.lora_A" is float32[3 4], the model needs floats of [3 2]`},
		`{"other.weight":{"r":4,"alpha":8}}`:    {good, `it holds a pair for "other.weight", and the model has no such linear layer`},
		`{"bare":{"r":4,"alpha":8}}`:            {good, `it has no tensor "bare.lora_A"`},
	} {
		_, err := pairsIn(t, pairsState(t, pairs, c.tensors))
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("%s: got %v, want %q", pairs, err, c.want)
		}
	}
}

// TestPEFTFolder: layouts are PEFT's, ranks and alphas that differ are exceptions, targets
// are the modules' last names only where no other layer has one of them.
func TestPEFTFolder(t *testing.T) {
	pairs, err := pairsIn(t, pairsState(t, `{"net.0.fc.weight":{"r":1,"alpha":2},"head.weight":{"r":2,"alpha":2}}`, map[string][]int64{
		"net.0.fc.weight.lora_A": {2, 1}, "net.0.fc.weight.lora_B": {1, 2}, "head.weight.lora_A": {3, 2}, "head.weight.lora_B": {2, 2},
	}))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "adapter")
	if err := pairs.Write(dir, ""); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var c peftConfig
	if err := json.Unmarshal(text, &c); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(c.Targets, []string{"net.0.fc", "head"}) || c.Rank != 1 || c.Ranks["head"] != 2 || len(c.Alphas) != 0 || !c.FanInFanOut {
		t.Errorf("%s", text)
	}
	f, err := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a, ok := f.Lookup("base_model.model.head.lora_A.weight")
	if !ok || !slices.Equal(a.Shape, []int64{2, 3}) {
		t.Fatalf("%+v", f.Tensors)
	}
	got, err := onnx.NewTensor(a.DType, a.Shape, f.Bytes(a)).Float64s()
	if err != nil || !slices.Equal(got, []float64{1, 3, 5, 2, 4, 6}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, c := range []struct {
		modules, layers, want []string
	}{
		{[]string{"a.0.q", "a.1.q"}, []string{"a.0.q", "a.1.q", "a.0.k"}, []string{"q"}},
		{[]string{"a.0.q"}, []string{"a.0.q", "a.1.q"}, []string{"a.0.q"}},
		{[]string{"q"}, []string{"q", ""}, []string{"q"}},
	} {
		if got := targets(c.modules, c.layers); !slices.Equal(got, c.want) {
			t.Errorf("targets of %v among %v: %v", c.modules, c.layers, got)
		}
	}
	if err := pairs.Write(filepath.Join(t.TempDir(), "no"), "net."); err == nil || !strings.Contains(err.Error(), "head does not begin with it") {
		t.Errorf("prefix: %v", err)
	}
	bare, err := pairsIn(t, pairsState(t, `{"bare":{"r":1,"alpha":2}}`, map[string][]int64{"bare.lora_A": {2, 1}, "bare.lora_B": {1, 2}}))
	if err != nil {
		t.Fatal(err)
	}
	if err := bare.Write(filepath.Join(t.TempDir(), "no"), ""); err == nil || !strings.Contains(err.Error(), "does not say which one multiplies by this") {
		t.Errorf("bare: %v", err)
	}
}

// TestPairsBesideCodes: nothing can be added to codes, so a pair stands beside them, and the
// model computes x W + (alpha/r) (x A) B.
func TestPairsBesideCodes(t *testing.T) {
	for _, body := range []string{
		"init w int8[2,3] = [1,2,3,4,5,6]\ninit s float32[] = 0.5\nv = DequantizeLinear(w, s)\ny = MatMul(x, v)",
		"init w uint8[3,1,8] = [165, 136, 136, 136, 136, 136, 136, 136, 182, 136, 136, 136, 136, 136, 136, 136, 199, 136, 136, 136, 136, 136, 136, 136]\n" +
			"init s float32[3] = [0.5, 0.5, 0.5]\ny = com.microsoft.MatMulNBits(x, w, s) {K=2, N=3, bits=4, block_size=16}",
	} {
		m, types := ortest.Parse(t, "model ir=10 opset=21 opset[com.microsoft]=1\ngraph g {\nin x float32[4,2]\n"+body+"\nout y float32[4,3]\n}\n")
		feeds := ortest.RandomInputs(m)
		before := ortest.Run(t, m, 0, feeds)["y"]
		l := adapter.Linears(m.Graph)
		if len(l) != 1 || !l[0].Codes() || l[0].In != 2 || l[0].Out != 3 || l[0].Weight.Name != "w" {
			t.Fatal(l)
		}
		if err := adapter.Beside(m.Graph, types, l[0], "w", adapter.Trained{Rank: 1, Scale: 2, A: []float64{1, 2}, B: []float64{3, 4, -5}}); err != nil {
			t.Fatal(err)
		}
		x, err := feeds["x"].Float64s()
		if err != nil {
			t.Fatal(err)
		}
		for i, y := range ortest.Run(t, m, 0, feeds)["y"] {
			row := x[i/3*2:]
			want := before[i] + 2*(row[0]+2*row[1])*[]float64{3, 4, -5}[i%3]
			if math.Abs(y-want) > 1e-5 {
				t.Errorf("y[%d] = %g, want %g", i, y, want)
			}
		}
		if err := adapter.Beside(m.Graph, types, l[0], "w", adapter.Trained{Rank: 1, Scale: 2, A: []float64{1, 2}, B: []float64{3, 4, -5}}); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("a second time: %v", err)
		}
	}
}
