package pipeline

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// writeApart writes a forward model whose parameters a, b and c of value k, 2 k and 3 k lie in a folder of
// their own, in that order.
func writeApart(t *testing.T, path, order string, k float32) {
	t.Helper()
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[8]\ninit a float32[8] = [0,0,0,0,0,0,0,0]\ninit b float32[8] = [0,0,0,0,0,0,0,0]\n" +
		"init c float32[8] = [0,0,0,0,0,0,0,0]\nu = Mul(x, a)\nv = Add(u, b)\nw = Mul(v, c)\nloss = ReduceSum(w) {keepdims=0}\nout loss float32[]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	var data []byte
	for _, name := range strings.Split(order, "") {
		v := m.Graph.Value(name)
		v.Init = onnx.ExternalTensor(name, onnx.Float32, []int64{8}, "w/data", int64(len(data)), 32)
		value := k * float32(name[0]-'a'+1)
		data = append(data, bytes.Repeat(binary.NativeEndian.AppendUint32(nil, math.Float32bits(value)), 8)...)
	}
	folder := filepath.Join(filepath.Dir(path), "w")
	if err := os.MkdirAll(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "data"), data, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
}

// TestParametersMoved: a derived graph reads what was written in place of the forward model's weights, and is refused
// where the model says that they lie in another order now.
func TestParametersMoved(t *testing.T) {
	dir := t.TempDir()
	model := filepath.Join(dir, "m.onnx")
	writeApart(t, model, "abc", 1)
	source, err := Load(model)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	derived := map[string]string{}
	for name, names := range map[string]map[string]string{"derived": nil, "renamed": {"a": "b", "b": "a"}} {
		d, err := source.Derive(DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX, Params: []string{"a", "b", "c"}}, Update: optim.Defaults(optim.None), Names: names})
		if err != nil {
			t.Fatal(err)
		}
		derived[name] = filepath.Join(dir, name+".onnx")
		if err := d.Save(derived[name]); err != nil {
			t.Fatal(err)
		}
	}
	moved := "m.onnx says that it lies elsewhere in w/data than when the graph was derived"
	for _, c := range []struct {
		name, order string
		k           float32
		want        string
	}{
		{"as it was", "abc", 1, ""},
		{"other values", "abc", 2, ""},
		{"another order", "bac", 1, moved},
		{"as it was again", "abc", 1, ""},
	} {
		writeApart(t, model, c.order, c.k)
		for name, path := range derived {
			loss, err := lossOf(t, path)
			switch {
			case c.want == "" && (err != nil || loss != 8*3*c.k*(c.k+2*c.k)):
				t.Errorf("%s: %s has a loss of %v, %v", c.name, name, loss, err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%s: %s gives %v, want %q", c.name, name, err, c.want)
			}
		}
	}
	writeApart(t, model, "bac", 1)
	if err := os.Remove(model); err != nil { // nobody knows then
		t.Fatal(err)
	}
	if _, err := lossOf(t, derived["derived"]); err != nil {
		t.Error(err)
	}
}

// lossOf runs a step of a file on ones.
func lossOf(t *testing.T, path string) (float32, error) {
	t.Helper()
	s, err := engine(t).OpenFile(path, runtime.Options{Threads: 1, Provider: ort.CPU})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	ones := bytes.Repeat(binary.NativeEndian.AppendUint32(nil, math.Float32bits(1)), 8)
	if err := s.SetBytes("x", ones); err != nil {
		return 0, err
	}
	step, err := s.Step(t.Context())
	if err != nil {
		return 0, err
	}
	loss, _ := step.Output("loss")
	return math.Float32frombits(binary.NativeEndian.Uint32(loss.Data)), nil
}
