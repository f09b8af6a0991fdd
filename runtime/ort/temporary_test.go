package ort

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveTemporary: a program that ends in the midst of things takes its
// temporary folders with it.
func TestRemoveTemporary(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dir, err := TemporaryDir("remat-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := TemporaryDir("remat-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := DropTemporary(other); err != nil {
		t.Fatal(err)
	}
	RemoveTemporary()
	t.Cleanup(func() { temporary.ended = false })
	if late, err := TemporaryDir("remat-test-"); err == nil {
		t.Errorf("%s was made after the end", late)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := DropTemporary(dir); err != nil {
		t.Error(err)
	}
}
