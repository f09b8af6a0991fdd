package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// TestShortenedFile reads weights whose file was cut off after it was mapped:
// one line that says so, where the process would end.
func TestShortenedFile(t *testing.T) {
	const size = 1 << 20
	m := onnx.NewModel("weights", 17)
	m.Path = filepath.Join(t.TempDir(), "m.onnx")
	file := filepath.Join(filepath.Dir(m.Path), "w.bin")
	if err := os.WriteFile(file, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	m.Graph.AddOutput(m.Graph.AddConstant("W", onnx.ExternalTensor("W", onnx.Uint8, []int64{size}, "w.bin", 0, size)))
	if err := m.Save(m.Path); err != nil {
		t.Fatal(err)
	}
	m, err := onnx.Load(m.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	data, err := m.Graph.Value("W").Init.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 0); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	line := func() (line string) {
		defer func() { line = panicLine(recover()) }()
		sum := byte(0)
		for _, b := range data {
			sum += b
		}
		t.Logf("read %d bytes, sum %d", len(data), sum)
		return ""
	}()
	if !strings.HasPrefix(line, "a file was shortened") || strings.Contains(line, "\n") {
		t.Errorf("said %q", line)
	}
	var none *onnx.Model
	func() {
		defer func() { line = panicLine(recover()) }()
		t.Log(none.Path)
	}()
	if !strings.HasPrefix(line, "internal error: ") {
		t.Errorf("a bug is said to be %q", line)
	}
}

// TestNoRoom: a folder for temporary files that is full is named with the way to another one, whatever
// the file is for; one that outputs are written to is not.
func TestNoRoom(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for path, want := range map[string]bool{filepath.Join(os.TempDir(), "remat-tokens-1"): true, filepath.Join(os.TempDir(), "remat-sweep-1", "m.onnx"): true, filepath.Join(t.TempDir(), "m.onnx"): false} {
		var said strings.Builder
		e := newEnv(context.Background(), io.Discard, &said)
		if code := e.exitCode(fmt.Errorf("tokens: %w", &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC})); code != exitBadInput {
			t.Errorf("%s: exit code %d", path, code)
		}
		if line := said.String(); strings.Count(line, "\n") != 1 || strings.Contains(line, "TMPDIR names another") != want {
			t.Errorf("%s: said %q", path, line)
		}
	}
}
