package pipeline

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/onnx-remat/remat/rewrite/optim"
)

// TestCloseOfShortenedFile: a file that somebody shortened meanwhile is closed, not read again.
func TestCloseOfShortenedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := zooStep(t, "gpt2-tiny", optim.SGD, smallZoo).Save(path); err != nil {
		t.Fatal(err)
	}
	s, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
