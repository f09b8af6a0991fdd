package tile

// The structure that the passes write: each archive under testdata holds a graph
// and the graph in parts; -update writes it.

import (
	"flag"
	"os"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

var rewriteFiles = flag.Bool("update", false, "write the results as the expected ones")

// golden are the archives and what is done to their graphs.
var golden = map[string]func(m *onnx.Model, types *infer.Result) error{
	// The projection, its loss and their gradients over two slices of the tokens.
	"loss": func(m *onnx.Model, types *infer.Result) error {
		r, err := Find(m, m.Graph.Value("loss"))
		if err != nil {
			return err
		}
		return r.Apply(types, r.Parts(2))
	},
	// Attention in two parts: what forward's softmax leaves for backward crosses
	// in parts.
	"wide": func(m *onnx.Model, types *infer.Result) error {
		_, _, _, err := Wide(m, types, isForward, 2)
		return err
	},
	// Gradient and update of a parameter over four slices of its rows.
	"sgd": func(m *onnx.Model, types *infer.Result) error {
		_, _, _, err := Rows(m, types, next(m), forwardSide, 4)
		return err
	},
}

func TestGolden(t *testing.T) {
	for name, pass := range golden {
		t.Run(name, func(t *testing.T) {
			file := "testdata/" + name + ".txtar"
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if len(archive.Files) != 2 || archive.Files[0].Name != "in" || archive.Files[1].Name != "out" {
				t.Fatalf("%s holds other files than in and out", file)
			}
			was, _ := ortest.Parse(t, string(archive.Files[0].Data))
			m, types := ortest.Parse(t, string(archive.Files[0].Data))
			if err := pass(m, types); err != nil {
				t.Fatal(err)
			}
			sameResults(t, was, m, false)
			got := ortest.Text(m)
			if *rewriteFiles {
				archive.Files[1].Data = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(archive.Files[1].Data) {
				t.Errorf("%s: got\n%s", file, got)
			}
		})
	}
}
