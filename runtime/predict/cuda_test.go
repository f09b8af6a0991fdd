package predict

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

// cudaLibrary names the variable that holds the path of ONNX Runtime's GPU build in a
// process that tests the CUDA provider, on the null device.
const cudaLibrary = "REMAT_TEST_CUDA"

// sameNode compares names of nodes; copies are numbered as ONNX Runtime likes.
func sameNode(a, b string) bool {
	return a == b || strings.HasPrefix(a, "Memcpy") && strings.HasPrefix(b, "Memcpy")
}

func checkRandomCUDA(seed uint64, dir string) error {
	m, err := newGrower(seed).grow(5 + int(seed%60))
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "r.onnx")
	if seed%2 == 0 {
		m.Graph.AnnotateTypes()
	}
	if err := m.Save(path); err != nil {
		return err
	}
	if m, err = onnx.Load(path); err != nil {
		return err
	}
	if _, err := infer.Model(m, infer.Options{Strict: true}); err != nil {
		return err
	}
	o := ort.SessionOptions{Threads: 1, Provider: ort.CUDA, ProfilePrefix: filepath.Join(dir, "p")}
	real, err := measure(path, o, nil)
	if err != nil {
		return err
	}
	p, err := Predict(m, Options{On: step.CUDA})
	if err != nil {
		return err
	}
	if !p.Exact() {
		return fmt.Errorf("not exact: %s", p.Unknown[0])
	}
	if order := p.labels(); !slices.EqualFunc(order, real.order, sameNode) {
		return fmt.Errorf("order %v, measured %v", order, real.order)
	}
	if diff := compare(p, real, false); diff != "" {
		return fmt.Errorf("%s", diff)
	}
	return nil
}

func TestRandomCUDA(t *testing.T) {
	count := uint64(2000)
	dir, failed := t.TempDir(), 0
	for seed := range count {
		if err := checkRandomCUDA(seed, dir); err != nil {
			t.Errorf("seed %d: %v", seed, err)
			if keep := os.Getenv("REMAT_KEEP"); keep != "" {
				os.Rename(filepath.Join(dir, "r.onnx"), filepath.Join(keep, fmt.Sprintf("r%d.onnx", seed)))
			}
			if failed++; failed == 4000 {
				t.FailNow()
			}
		}
	}
}
