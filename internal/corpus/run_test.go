package corpus_test

// Every case runs in ONNX Runtime and gives the outputs that it expects, but
// those that testdata/exceptions.txt lists with a reason. The list may only
// shrink: a listed case that passes fails the test, with the release that the list is
// made from. With -update, cases that
// fail and are not listed are added with the first line of their error.

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/corpus"
	"github.com/onnx-remat/remat/internal/corpus/onnxgo"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ortversion"
)

var update = flag.Bool("update", false, "add failing cases to the list of exceptions")

var exceptionsFile = filepath.Join("testdata", "exceptions.txt")

func TestCasesRun(t *testing.T) {
	engine, err := runtime.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	nodes, err := corpus.Nodes(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(exceptionsFile)
	if err != nil {
		t.Fatal(err)
	}
	exceptions, err := corpus.ReadExceptions(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	passed := 0
	for _, c := range slices.Concat(nodes, onnxgo.Cases()) {
		reason, excepted := exceptions[c.Name]
		delete(exceptions, c.Name)
		switch err := run(t, engine, c); {
		case err == nil && excepted && engine.Env.Version() == ortversion.Current:
			t.Errorf("%s passes: take it off the list (%s)", c.Name, reason)
		case err == nil:
			passed++
		case !excepted && *update:
			data = fmt.Appendf(data, "%s: %s\n", c.Name, firstLine(err))
		case !excepted:
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	for name := range exceptions {
		t.Errorf("the list names %s, which is no case", name)
	}
	t.Logf("%d cases pass", passed)
	if *update {
		if err := os.WriteFile(exceptionsFile, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, engine *runtime.Engine, c corpus.Case) error {
	sets, err := c.Sets()
	if err != nil {
		return err
	}
	if len(sets) == 0 {
		return errors.New("no data")
	}
	m, err := c.Load()
	if err != nil {
		return err
	}
	defer m.Close()
	for _, set := range sets {
		if err := runSet(t, engine, m, set); err != nil {
			return err
		}
	}
	return nil
}

func runSet(t *testing.T, engine *runtime.Engine, m *onnx.Model, set corpus.Set) error {
	feed := map[string]runtime.Tensor{}
	for i, x := range set.Inputs {
		if x == nil {
			continue
		}
		data, err := x.Bytes()
		if err != nil {
			return err
		}
		feed[m.Graph.Inputs[i].Name] = runtime.Tensor{Type: x.DType(), Shape: x.Dims(), Data: data}
	}
	s, err := engine.Open(m, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Feed: feed, Roles: &runtime.Roles{}})
	if err != nil {
		return err
	}
	defer s.Close()
	step, err := s.Step(t.Context())
	if err != nil {
		return err
	}
	for i, want := range set.Outputs {
		out := step.Outputs[i]
		if out.Err != nil {
			return fmt.Errorf("output %q: %w", out.Name, out.Err)
		}
		if want == nil {
			continue
		}
		if err := corpus.Compare(onnx.NewTensor(out.Type, out.Shape, out.Data), want); err != nil {
			return fmt.Errorf("output %q: %w", out.Name, err)
		}
	}
	return nil
}

var sourcePath = regexp.MustCompile(`/\S*onnxruntime\S*`)

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimSpace(sourcePath.ReplaceAllString(line, ""))
}
