package predict

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

// halfChain is a graph that casts to a half type, works there and casts back.
func halfChain(op string, p *probe, d onnx.DType) (*onnx.Model, error) {
	m := onnx.NewModel("half", 22)
	types, err := infer.Model(m, infer.Options{Strict: true})
	if err != nil {
		return nil, err
	}
	b := build.New(m.Graph, types, "")
	var in []*onnx.Value
	for i, a := range p.args {
		if a.value != nil {
			in = append(in, m.Graph.AddConstant("c", a.value))
			continue
		}
		if a.dtype == onnx.Undefined {
			in = append(in, nil)
			continue
		}
		x := m.Graph.AddInput(fmt.Sprintf("x%d", i), onnx.TensorOf(a.dtype, onnx.StaticShape(a.shape...)))
		if a.dtype == onnx.Float32 {
			x = b.Op("Cast", build.In(x), onnx.IntAttr("to", int64(d)))
		}
		in = append(in, x)
	}
	y := b.Node("", op, in, 1, p.attrs...)[0]
	z := b.Op("Transpose", build.In(y))
	out := b.Op("Cast", build.In(z), onnx.IntAttr("to", int64(onnx.Float32)))
	if err := b.Err(); err != nil {
		return nil, err
	}
	m.Graph.AddOutput(out)
	b.Flush()
	m.Graph.AnnotateTypes()
	return m, nil
}

// Half types on the CPU: ONNX Runtime surrounds most operators with casts. The
// graph that it makes of the file is predicted to the byte.
func TestHalfTypes(t *testing.T) {
	ran := 0
	for i := range probes {
		p := &probes[i]
		for _, op := range strings.Fields(p.ops) {
			for _, d := range []onnx.DType{onnx.Float16, onnx.BFloat16} {
				for _, level := range []int{0, 1} {
					name := fmt.Sprintf("%s of %s, level %d", op, d, level)
					m, err := halfChain(op, p, d)
					if err != nil {
						continue // no such form of the operator
					}
					dir := t.TempDir()
					path := filepath.Join(dir, "h.onnx")
					if err := m.Save(path); err != nil {
						t.Fatal(err)
					}
					o := ort.SessionOptions{Level: level, Threads: 1}
					real, err := measure(path, o, nil)
					if err != nil {
						continue // not implemented on the CPU
					}
					ran++
					pred, err := asExecuted(path, dir, o)
					if err != nil {
						if !strings.Contains(err.Error(), "not exact") {
							t.Errorf("%s: %v", name, err)
						}
						t.Logf("%s: %v", name, err)
						continue
					}
					if diff := compare(pred, real, true); diff != "" {
						t.Errorf("%s: %s", name, diff)
					}
				}
			}
		}
	}
	t.Logf("%d run", ran)
}
