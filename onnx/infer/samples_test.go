package infer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// samples lists the sample models, but for those of genai: their builder declares lists as
// scalars, and nothing tells the sizes of the caches that they return.
func samples(t testing.TB) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(filepath.Join("..", "..", "testdata", "models"), func(p string, d os.DirEntry, err error) error {
		if strings.HasSuffix(p, ".onnx") && filepath.Base(filepath.Dir(p)) != "genai" {
			out = append(out, p)
		}
		return err
	})
	if err != nil || len(out) < 15 {
		t.Fatalf("%d samples, %v", len(out), err)
	}
	return out
}

// declared takes the declared types off the values that nodes make, so that
// inference has to find them, and returns them.
func declared(g *onnx.Graph) map[*onnx.Value]onnx.Type {
	types := map[*onnx.Value]onnx.Type{}
	for _, n := range g.Nodes {
		for _, v := range n.Outputs {
			if v != nil {
				types[v] = v.Type
				v.Type = onnx.Type{}
			}
		}
	}
	return types
}

func TestSamples(t *testing.T) {
	for _, path := range samples(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			m, err := onnx.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			want := declared(m.Graph)
			o := Options{Strict: true}
			if strings.Contains(path, "dynaxes") {
				o.Dims = map[string]int64{"batch": 2, "seq": 32}
			}
			if _, err := Model(m, o); err != nil {
				t.Fatal(err)
			}
			for _, n := range m.Graph.Nodes {
				for _, v := range n.Outputs {
					if v == nil {
						continue
					}
					if !v.Type.IsStatic() && v.Type.Other == nil {
						t.Errorf("%s of %s (%s) is %s", v.Name, n.Label(), n.OpType(), v.Type)
					}
					if w := want[v]; w.IsStatic() && !w.Same(v.Type) {
						t.Errorf("%s of %s (%s) is %s, declared %s", v.Name, n.Label(), n.OpType(), v.Type, w)
					}
				}
			}
		})
	}
}
