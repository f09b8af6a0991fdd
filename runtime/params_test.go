package runtime

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestDescribedParameter: what a file only describes is made by the description,
// whatever the seed of the random feeds; what nobody understands is random.
func TestDescribedParameter(t *testing.T) {
	m := onnx.NewModel("described", 17)
	vec := onnx.TensorOf(onnx.Float32, onnx.StaticShape(9))
	for _, name := range []string{"W", "odd"} {
		n := m.Graph.NewNode("", "Neg", "neg", []*onnx.Value{m.Graph.AddInput(name, vec)}, []string{"out" + name})
		n.Out(0).Type = vec
		m.Graph.Append(n)
		m.Graph.AddOutput(n.Out(0))
	}
	m.SetMetadata(ParametersKey, `{"W": {"init": "normal", "scale": 3, "seed": 7}, "odd": {"init": "cubic"}}`)
	s, err := testEngine.Open(m, Options{Threads: 1, Provider: ort.CPU, Seed: 99})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	want := make([]byte, 36)
	weights.Normal(3).Fill(want, 7, "W", 0)
	if got, _, err := s.Input("W"); err != nil || !bytes.Equal(got.Data, want) {
		t.Errorf("W is %v, %v", got.Data, err)
	}
	if got, _, _ := s.Input("odd"); bytes.Equal(got.Data, make([]byte, 36)) {
		t.Error("a parameter of unknown making is zero, not random")
	}
}

// TestParametersInOnePlace: parameters whose values a file holds once, since they begin
// equal, are updated apart, and none moves with another.
func TestParametersInOnePlace(t *testing.T) {
	dir := t.TempDir()
	for name, at := range map[string]int{"aligned": 0, "elsewhere": 4, "overlapping": 64} {
		m, err := onnx.Parse(`model ir=10 opset=20
graph g {
in P float32[32]
in Q float32[32]
in R float32[32]
init one float32[] = [1]
P.new = Add(P, one)
Q.new = Sub(Q, one)
sum = ReduceSum(R) {keepdims=0}
out P.new float32[32]
out Q.new float32[32]
out sum float32[]
}
`)
		if err != nil {
			t.Fatal(err)
		}
		m.SetMetadata(ParametersKey, fmt.Sprintf(`{"P": {"file": "w", "offset": %d, "bytes": 128},
			"Q": {"file": "w", "offset": 0, "bytes": 128}, "R": {"file": "w", "offset": 0, "bytes": 128}}`, at))
		path := filepath.Join(dir, name+".onnx")
		if err := os.WriteFile(filepath.Join(dir, "w"), make([]byte, 256), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		s, err := testEngine.OpenFile(path, Options{Threads: 1, Provider: ort.CPU, Roles: &Roles{New: map[string]string{"P": "P.new", "Q": "Q.new"}}})
		if err != nil {
			t.Fatal(err)
		}
		var sum []byte
		for range 3 {
			step, err := s.Step(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			out, _ := step.Output("sum")
			sum = bytes.Clone(out.Data)
		}
		for name, want := range map[string]float32{"P": 3, "Q": -3} {
			got, _, err := s.Input(name)
			if err != nil || !bytes.Equal(got.Data, bytes.Repeat(binary.NativeEndian.AppendUint32(nil, math.Float32bits(want)), 32)) {
				t.Errorf("%s: %s is %v after three steps, not %v; %v", path, name, got.Data, want, err)
			}
		}
		if !bytes.Equal(sum, make([]byte, 4)) {
			t.Errorf("%s: what no step updates has moved", path)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestParameterInAPipe: a file that is no file is refused, not waited for.
func TestParameterInAPipe(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "weights"), 0o600); err != nil {
		t.Fatal(err)
	}
	m := onnx.NewModel("piped", 17)
	vec := onnx.TensorOf(onnx.Float32, onnx.StaticShape(9))
	n := m.Graph.NewNode("", "Neg", "neg", []*onnx.Value{m.Graph.AddInput("W", vec)}, []string{"y"})
	n.Out(0).Type = vec
	m.Graph.Append(n)
	m.Graph.AddOutput(n.Out(0))
	m.SetMetadata(ParametersKey, `{"W": {"file": "weights", "offset": 0, "bytes": 36}}`)
	path := filepath.Join(dir, "piped.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		s, err := testEngine.Open(m, Options{Threads: 1, Provider: ort.CPU})
		if err == nil {
			s.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("still waiting after 20 seconds")
	}
}
