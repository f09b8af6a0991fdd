package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

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

// TestShortenedWhileRunning shortens frozen weights that ONNX Runtime reads in each step: the
// process ends with that line too.
func TestShortenedWhileRunning(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("on Linux only")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	do(t, "model gpt2-tiny --hidden 256 --heads 2 --vocab 2000 --batch 1 --seq 64 -o "+at("m.onnx"))
	do(t, "grad "+at("m.onnx")+" --params *ln_f* --optimizer sgd --quiet -o "+at("t.onnx"))
	do(t, "rewrite "+at("t.onnx")+" --strategy none --quiet -o "+at("r.onnx")) // whose products read the weights as they lie
	c := asProgram(t)("run", at("r.onnx"), "--steps", "1000000", "--threads", "2")
	var said strings.Builder
	c.Stderr = &said
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	for line := bufio.NewReader(out); ; {
		text, err := line.ReadString('\n')
		if err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
		if strings.Contains(text, "on cpu") {
			break
		}
	}
	time.Sleep(time.Second / 2)
	if err := os.Truncate(at("m.safetensors"), 1<<12); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitBadInput || said.String() != "remat: "+shortened+"\n" {
		t.Errorf("exit code %d, said %q", code, said.String())
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
