// Package corpus gives the tests models that others wrote, with inputs and the
// outputs that they expect: the node tests of the Python package onnx.
// onnxgo, beside it, holds those that onnx-go carries.
package corpus

// The node tests lie in folders of the package:
//
//	backend/test/data/node/test_add/model.onnx
//	                                test_data_set_0/input_0.pb, output_0.pb
//
// The .pb files are TensorProto messages, or sequences and optionals where the
// model declares such a type; those are refused by name.

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/runtime/install"
)

// Version is the Python package whose node tests are taken.
const Version = "1.22.0"

const nodeFolder = "onnx/backend/test/data/node/"

// A Case is one model with data to run it on.
type Case struct {
	Name string
	// Model is the encoded model; Dir is where its external data would lie.
	Model []byte
	Dir   string
	// Sets reads the data; an error says what about it is not understood.
	Sets func() ([]Set, error)
}

// A Set is what goes in and what must come out, by the model's order. Nil
// stands for one that the data leaves out.
type Set struct {
	Inputs, Outputs []*onnx.Tensor
}

// Load decodes the model of the case.
func (c Case) Load() (*onnx.Model, error) { return onnx.Decode(c.Model, c.Dir) }

// Nodes returns the node tests, sorted by name, after getting them through pip
// where the user's cache does not hold them yet.
func Nodes(ctx context.Context, log io.Writer) ([]Case, error) {
	dir, err := install.Package(ctx, "onnx=="+Version, filepath.Join("corpus", "onnx-"+Version), place, log)
	if err != nil {
		return nil, err
	}
	models, err := filepath.Glob(filepath.Join(dir, "*", "model.onnx"))
	if err != nil {
		return nil, err
	}
	sort.Strings(models)
	cases := make([]Case, 0, len(models))
	for _, path := range models {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("corpus: %w", err)
		}
		folder := filepath.Dir(path)
		c := Case{Name: filepath.Base(folder), Model: data, Dir: folder}
		c.Sets = func() ([]Set, error) { return readSets(c) }
		cases = append(cases, c)
	}
	return cases, nil
}

func place(name string) string {
	rest, _ := strings.CutPrefix(name, nodeFolder)
	if rest == name {
		return ""
	}
	return rest
}

func readSets(c Case) ([]Set, error) {
	m, err := c.Load()
	if err != nil {
		return nil, err
	}
	defer m.Close()
	folders, err := filepath.Glob(filepath.Join(c.Dir, "test_data_set_*"))
	if err != nil {
		return nil, err
	}
	sort.Strings(folders)
	var sets []Set
	for _, folder := range folders {
		in, err := readValues(folder, "input", m.Graph.Inputs)
		if err != nil {
			return nil, err
		}
		out, err := readValues(folder, "output", m.Graph.Outputs)
		if err != nil {
			return nil, err
		}
		sets = append(sets, Set{in, out})
	}
	return sets, nil
}

// readValues reads input_0.pb, input_1.pb and so on for the declared values.
func readValues(folder, kind string, values []*onnx.Value) ([]*onnx.Tensor, error) {
	var out []*onnx.Tensor
	for i, v := range values {
		data, err := os.ReadFile(filepath.Join(folder, fmt.Sprintf("%s_%d.pb", kind, i)))
		if os.IsNotExist(err) {
			out = append(out, nil)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("corpus: %w", err)
		}
		if v.Type.Other != nil {
			return nil, fmt.Errorf("%s %q is no tensor", kind, v.Name)
		}
		t := &pb.TensorProto{}
		if err := proto.Unmarshal(data, t); err != nil {
			return nil, fmt.Errorf("corpus: %s of %s: %w", kind, folder, err)
		}
		out = append(out, onnx.WrapTensor(t))
	}
	return out, nil
}
