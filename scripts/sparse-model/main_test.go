package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

const loadEnv = "REMAT_TEST_LOAD"

// TestMain loads one model alone in the process when the environment names it,
// and prints milliseconds, the peak of resident memory in kB and the bytes of
// weights.
func TestMain(m *testing.M) {
	path := os.Getenv(loadEnv)
	if path == "" {
		os.Exit(m.Run())
	}
	start := time.Now()
	bytes, err := open(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(time.Since(start).Milliseconds(), peakKB(), bytes)
}

func open(path string) (int64, error) {
	m, err := onnx.Load(path)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	if err := m.Check(); err != nil {
		return 0, err
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		return 0, err
	}
	sum := int64(0)
	for _, v := range m.Graph.Initializers {
		data, err := v.Init.Bytes()
		if err != nil {
			return 0, err
		}
		sum += int64(len(data))
	}
	return sum, nil
}

func peakKB() (kb int64) {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fmt.Sscanf(s.Text(), "VmHWM: %d kB", &kb)
	}
	return kb
}

// TestLargeModel opens 6.2 GB of external weights: load, check, infer shapes
// and map every tensor in under 2 s and 200 MiB.
func TestLargeModel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xl.onnx")
	if err := write(path, "gpt2-xl"); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), loadEnv+"="+path)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var ms, kb, bytes int64
	if _, err := fmt.Sscan(string(out), &ms, &kb, &bytes); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Logf("%d bytes of weights opened in %d ms and %d kB", bytes, ms, kb)
	if bytes < 6_200_000_000 || ms > 2000 || kb > 200<<10 {
		t.Errorf("%d bytes of weights took %d ms and %d kB", bytes, ms, kb)
	}
}
