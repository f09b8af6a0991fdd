// Sparse-model writes a model of the zoo whose weights are zeros in a sparse
// file: of any size on paper, of almost none on the disk. It serves to try how
// large models are opened.
//
//	go run ./scripts/sparse-model -o DIR/xl.onnx gpt2-xl
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
)

func main() {
	out := flag.String("o", "sparse.onnx", "the model `file` to write; its weights go beside it, into FILE.weights")
	flag.Parse()
	name := "gpt2-xl"
	if flag.NArg() > 0 {
		name = flag.Arg(0)
	}
	if err := write(*out, name); err != nil {
		fmt.Fprintln(os.Stderr, "sparse-model:", err)
		os.Exit(2)
	}
}

// align is where tensors begin in the weights file.
const align = 4096

func write(out, name string) error {
	row, err := models.Find(name)
	if err != nil {
		return err
	}
	built, err := row.Build(row.Default)
	if err != nil {
		return err
	}
	g, weights, offset := built.Model.Graph, filepath.Base(out)+".weights", int64(0)
	for _, p := range built.Params {
		size := 4 * p.Elements()
		old := g.Value(p.Name)
		v := g.AddConstant(p.Name+".value", onnx.ExternalTensor(p.Name, onnx.Float32, p.Shape, weights, offset, size))
		g.ReplaceUses(old, v)
		g.RemoveInput(old)
		g.Rename(v, p.Name)
		offset += (size + align - 1) / align * align
	}
	f, err := os.Create(filepath.Join(filepath.Dir(out), weights))
	if err != nil {
		return err
	}
	err = f.Truncate(offset)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return built.Model.Save(out)
}
