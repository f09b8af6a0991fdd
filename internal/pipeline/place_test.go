package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestCopiesAreWhole: copies of weights take the places of others with the file that reads
// them, and stay away where that is not written.
func TestCopiesAreWhole(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	path, copied := filepath.Join(from, "m.onnx"), filepath.Join(to, WeightsFolder, "w.bin")
	if err := errors.Join(onnx.NewModel("m", 17).Save(path), os.WriteFile(filepath.Join(from, "w.bin"), []byte("new"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Dir(copied), 0o755), os.WriteFile(copied, []byte("old"), 0o644)); err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	source := &Source{Path: path, Model: m}
	copyWith := func(after error) error {
		return onnx.Together(func(files *onnx.Outputs) error {
			p, err := newPlaces(source, files, filepath.Join(to, "t.onnx"), t.Logf)
			if err != nil {
				return err
			}
			if _, err := p.at("w.bin"); err != nil {
				return err
			}
			return after
		})
	}
	for _, after := range []error{errors.New("no space left"), nil} {
		if err := copyWith(after); !errors.Is(err, after) {
			t.Fatal(err)
		}
		want := "new"
		if after != nil {
			want = "old"
		}
		if data, err := os.ReadFile(copied); err != nil || string(data) != want {
			t.Errorf("after %v the copy holds %q, %v, want %q", after, data, err, want)
		}
	}
}
