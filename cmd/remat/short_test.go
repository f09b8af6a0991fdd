package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestShortProducts: of a product that no GPU would finish a rehearsal says so, and
// rewrite --provider cuda writes one that it does finish, with the same numbers.
func TestShortProducts(t *testing.T) {
	build := rehearsalBuild(t)
	if build == "" {
		t.Skip("no GPU build of ONNX Runtime: remat doctor --install cuda")
	}
	dir := t.TempDir()
	weights := strings.Repeat("0.5, -0.25, 0.125, ", 20)
	m, err := onnx.Parse(`model ir=10 opset=18
graph g {
  in a float32[2,1,4,6]
  init b float32[1,2,6,5] = [` + strings.TrimSuffix(weights, ", ") + `]
  y = MatMul(a, b)
  e = Exp(y)
  loss = ReduceMean(e) {keepdims=0}
  out loss float32[]
}
`)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save(filepath.Join(dir, "given.onnx")); err != nil {
		t.Fatal(err)
	}
	remat := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(filepath.Join(dir, "remat"), args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "REMAT_ORT="+build)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, "remat"), ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	remat("--provider", "cpu", "grad", "given.onnx", "-o", "train.onnx")
	const line = "no GPU would run it: node "
	if out := remat("--provider", "cuda", "--rehearse", "run", "train.onnx"); !strings.Contains(out, line) ||
		!strings.Contains(out, "MatMul of [2,1,4,6] and [1,2,6,5]: ONNX Runtime's CUDA kernel computes 2 of its 4 products") {
		t.Errorf("the rehearsal of the file given does not say what a GPU would do:\n%s", out)
	}
	if out := remat("--provider", "cuda", "--rehearse", "rewrite", "train.onnx", "-o", "written.onnx"); !strings.Contains(out, "broadcast: requested 1, applied 1") {
		t.Errorf("the product was not rewritten:\n%s", out)
	}
	if out := remat("--provider", "cuda", "--rehearse", "run", "written.onnx"); strings.Contains(out, line) {
		t.Errorf("the file written is still unfinished:\n%s", out)
	}
	remat("--provider", "cpu", "compare", "train.onnx", "written.onnx")
}
