package predict

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/internal/corpus"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/runtime/ort"
)

const exceptionsFile = "testdata/nodes.txt"

// The node tests of the Python package onnx whose operators stand in the
// table: peak and trace to the byte, or a line in the list of exceptions.
func TestNodes(t *testing.T) {
	cases, err := corpus.Nodes(t.Context(), io.Discard)
	if err != nil {
		t.Skipf("the node tests cannot be had: %v", err)
	}
	file, err := os.Open(exceptionsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	exceptions, err := corpus.ReadExceptions(file)
	if err != nil {
		t.Fatal(err)
	}
	exact := 0
	for _, c := range cases {
		if testing.Short() && len(c.Name)%8 != 0 {
			delete(exceptions, c.Name)
			continue
		}
		ran, err := checkNode(c, t.TempDir())
		_, excepted := exceptions[c.Name]
		delete(exceptions, c.Name)
		switch {
		case !ran:
		case err == nil && excepted:
			t.Errorf("%s is exact now: take it off %s", c.Name, exceptionsFile)
		case err == nil:
			exact++
		case !excepted:
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	for name := range exceptions {
		t.Errorf("%s names %s, which is no case", exceptionsFile, name)
	}
	t.Logf("%d exact", exact)
}

// checkNode reports whether the case counts: its operators are in the table
// and ONNX Runtime runs it.
func checkNode(c corpus.Case, dir string) (ran bool, err error) {
	m, err := c.Load()
	if err != nil {
		return false, err
	}
	defer m.Close()
	for _, n := range m.Graph.Nodes {
		if tr, ok := traits.Of(n); !ok || tr.SideEffects {
			return false, nil
		}
	}
	sets, err := c.Sets()
	if err != nil || len(sets) == 0 {
		return false, err
	}
	feeds := map[string][]byte{}
	for i, x := range sets[0].Inputs {
		if x == nil {
			continue
		}
		data, err := x.Bytes()
		if err != nil {
			return false, err
		}
		v := m.Graph.Inputs[i]
		v.Type = onnx.TensorOf(x.DType(), onnx.StaticShape(x.Dims()...))
		feeds[v.Name] = data
	}
	path := filepath.Join(dir, "n.onnx")
	if err := m.Save(path); err != nil {
		return false, err
	}
	o := ort.SessionOptions{Threads: 1}
	real, err := measure(path, o, feeds)
	if err != nil {
		return false, err
	}
	p, err := asExecuted(path, dir, o)
	if err != nil {
		return true, err
	}
	if diff := compare(p, real, true); diff != "" {
		return true, fmt.Errorf("%s", diff)
	}
	if s := p.Session.Bytes(); s != real.session {
		return true, fmt.Errorf("session holds %d bytes, predicted %d", real.session, s)
	}
	return true, nil
}
