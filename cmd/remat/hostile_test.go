package main

// Hostile files through the program: whatever command is given one, it says so
// in one line, exits with 2, and takes neither long nor much memory.

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// bombs are small items that a file repeats a million times: empty nodes, and
// empty attributes of one node.
var bombs = map[string][]byte{
	"nodes":      append([]byte{0x3a, 0x80, 0x89, 0x7a}, bytes.Repeat([]byte{0x0a, 0}, 1_000_000)...),
	"attributes": append([]byte{0x3a, 0x84, 0x89, 0x7a, 0x0a, 0x80, 0x89, 0x7a}, bytes.Repeat([]byte{0x2a, 0}, 1_000_000)...),
}

func TestHostileFiles(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "remat")
	if out, err := exec.Command("go", "build", "-buildvcs=false", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	files, err := filepath.Glob(filepath.Join("..", "..", "testdata", "hostile", "*.onnx"))
	if err != nil || len(files) < 20 {
		t.Fatalf("%d hostile files, %v", len(files), err)
	}
	for name, data := range bombs {
		path := filepath.Join(dir, name+".onnx")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, path)
	}
	base, _ := hostile(t, program, "inspect", filepath.Join(dir, "none.onnx"))
	for _, args := range [][]string{{"inspect"}, {"inspect", "--memory"}, {"run"}, {"plan", "-o", filepath.Join(dir, "plan.json")}, {"grad", "-o", filepath.Join(dir, "out.onnx")}} {
		for _, path := range files {
			kb, took := hostile(t, program, append(args, path)...)
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if grew := kb - base - info.Size()/1024; grew > 64<<10 || took > time.Second {
				t.Errorf("%q %s: %d kB above the file, %v", args, filepath.Base(path), grew, took)
			}
		}
	}
	for _, left := range []string{"plan.json", "out.onnx"} {
		if _, err := os.Stat(filepath.Join(dir, left)); err == nil {
			t.Errorf("%s was written", left)
		}
	}
}

// hostile runs the program, expects one line on stderr and exit code 2, and
// returns the peak of resident memory in kB and the time.
func hostile(t *testing.T, program string, args ...string) (int64, time.Duration) {
	t.Helper()
	cmd := exec.Command(program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("%q: %v, want exit code 2", args, err)
	}
	if line := stderr.String(); strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "remat: ") || stdout.Len() > 0 {
		t.Errorf("%q: stderr %q, stdout %q", args, line, stdout.String())
	}
	return cmd.ProcessState.SysUsage().(*syscall.Rusage).Maxrss, took
}
