package remat

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestProgram compiles a program of at most forty lines in a module of its own, which
// has nothing but this package, and runs it: what it measures is what was predicted.
func TestProgram(t *testing.T) {
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir, out := t.TempDir(), t.TempDir()
	source, err := os.ReadFile(filepath.Join("testdata", "program", "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(source, []byte("\n")); lines > 40 {
		t.Errorf("the program has %d lines", lines)
	}
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	// The requirements are this module's, so that nothing has to be found out about them.
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	mod = bytes.Replace(mod, []byte("module github.com/onnx-remat/remat\n"), []byte("module example.com/step\n"), 1)
	mod = fmt.Appendf(mod, "\nrequire github.com/onnx-remat/remat v0.0.0\n\nreplace github.com/onnx-remat/remat => %s\n", root)
	for name, text := range map[string][]byte{"main.go": source, "go.sum": sums, "go.mod": mod} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "run", ".", filepath.Join(root, "testdata", "models", "mlp20.ts.onnx"), out)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off")
	text, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	var loss float64
	var predicted, measured, before int64
	if _, err := fmt.Sscanf(string(text), "loss %f, live peak %d predicted, %d measured, %d before", &loss, &predicted, &measured, &before); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if !(loss > 0) || predicted != measured || 4*measured > 3*before {
		t.Errorf("%s", text)
	}
}
