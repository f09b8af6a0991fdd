package ort

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCutProfile: a profile that ends early is an error wherever it ends, and the folder for
// temporary files is named where it has no room for the rest.
func TestCutProfile(t *testing.T) {
	const whole = `[{"cat":"Session","name":"model_run"},{"cat":"Node","name":"a_kernel_time"},{"cat":"Node","name":"b_kernel_time"}]`
	if p, err := readProfile(strings.NewReader(whole)); err != nil || len(p.Nodes) != 2 {
		t.Fatalf("%v, %v", p, err)
	}
	for n := range len(whole) {
		if p, err := readProfile(strings.NewReader(whole[:n])); err == nil {
			t.Errorf("%q has %d nodes", whole[:n], len(p.Nodes))
		}
	}
	path := filepath.Join(t.TempDir(), "p.json")
	if err := os.WriteFile(path, []byte(whole[:50]), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := cut(io.ErrUnexpectedEOF, f, path); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	if err := cut(io.ErrUnexpectedEOF, f, "/dev/full"); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Error(err)
	}
}
