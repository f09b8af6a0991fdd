package onnx

import (
	"path/filepath"
	"testing"
)

// saved is a model as it is read again once it is saved.
func saved(t *testing.T, m *Model) *Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	again, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	return again
}
