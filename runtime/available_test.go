package runtime

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/ort"
)

func write(t *testing.T, dir string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestGroupMemory reads control groups of both versions, inside and outside of a
// container: the tightest of all levels counts, cached files do not.
func TestGroupMemory(t *testing.T) {
	const none = math.MaxInt64
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int64
	}{
		{"no control groups", map[string]string{"list": ""}, none},
		{"version 2, no limit", map[string]string{"list": "0::/a\n", "a/memory.max": "max\n", "a/memory.current": "5\n"}, none},
		{"version 2", map[string]string{"list": "0::/a/b\n",
			"a/memory.max": "1000\n", "a/memory.current": "700\n", "a/memory.stat": "anon 1\ninactive_file 50\nactive_file 20\n",
			"a/b/memory.max": "900\n", "a/b/memory.current": "100\n", "a/b/memory.stat": ""}, 370},
		{"version 2 in a container", map[string]string{"list": "0::/../x\n", "memory.max": "1000\n", "memory.current": "1200\n"}, 0},
		{"version 1", map[string]string{"list": "3:cpu:/c\n2:memory:/c\n",
			"memory/c/memory.limit_in_bytes": "1000\n", "memory/c/memory.usage_in_bytes": "600\n",
			"memory/c/memory.stat": "inactive_file 1\ntotal_inactive_file 100\n"}, 500},
		{"version 1, no limit", map[string]string{"list": "2:memory:/c\n",
			"memory/c/memory.limit_in_bytes": "9223372036854771712\n", "memory/c/memory.usage_in_bytes": "600\n"}, none},
	} {
		dir := write(t, t.TempDir(), c.files)
		if got := groupMemory(filepath.Join(dir, "list"), dir); got != c.want {
			t.Errorf("%s: %d left, want %d", c.name, got, c.want)
		}
	}
}

func TestMachineMemory(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{"meminfo": "MemTotal: 9 kB\nMemAvailable:      4 kB\nSwapFree:   2 kB\n"})
	if got := machineMemory(filepath.Join(dir, "meminfo")); got != 6<<10 {
		t.Errorf("%d available", got)
	}
	if n := Available(0); n <= 0 {
		t.Errorf("%d available here", n)
	}
	if a, b := Available(0), Available(math.MaxInt64/2); b != 0 && b >= a {
		t.Errorf("%d available, %d with pages to be written", a, b)
	}
}

// TestMemoryLimit: a step that would take more than it may ends with an error that
// says how much, and the session runs again where it may take that and no update can
// have been made.
func TestMemoryLimit(t *testing.T) {
	path := trainingModel(t, true)
	feeds := map[string]Tensor{"in:x": FromFloat32s([]float32{1, 1, 1, 1}, 4)}
	run := func(limit int64) (step *Step, total int64, err error) {
		s, err := testEngine.OpenFile(path, Options{Provider: ort.CPU, LR: 0.5, Feeds: feeds, MemoryLimit: limit})
		if err != nil {
			return nil, 0, err
		}
		defer s.Close()
		if step, err = s.Step(context.Background()); err == nil {
			return step, s.Memory().TotalPeakBytes, nil
		}
		s.options.MemoryLimit = 0
		memory, _ := errors.AsType[*MemoryError](err)
		if _, again := s.Step(context.Background()); memory != nil && (again != nil) != (memory.Asked > 0) {
			t.Errorf("after %v: %v", err, again)
		}
		return nil, 0, err
	}
	free, total, err := run(0)
	if err != nil {
		t.Fatal(err)
	}
	if exact, same, err := run(total); err != nil || exact.LivePeakBytes != free.LivePeakBytes || same != total {
		t.Errorf("with the total as limit: %+v, %v", exact, err)
	}
	_, _, err = run(total - 1)
	var memory *MemoryError
	if !errors.As(err, &memory) {
		t.Fatalf("one byte less: %v", err)
	}
	if memory.Need != free.LivePeakBytes || memory.Available != free.LivePeakBytes-1 || memory.Limit != total-1 || memory.Beside != total-free.LivePeakBytes || memory.Asked <= 0 {
		t.Errorf("one byte less: %+v, the peak is %d of %d", memory, free.LivePeakBytes, total)
	}
	if _, _, err = run(total - free.LivePeakBytes); !errors.As(err, &memory) || memory.Asked != 0 || !strings.Contains(err.Error(), "before a step") {
		t.Errorf("a limit that nothing is left of: %v", err)
	}
}

// TestSharedValues: what is made from a seed and never written is there once for
// all sessions, until the last one closes; a value that one session sets is its
// own.
func TestSharedValues(t *testing.T) {
	path := trainingModel(t, false)
	open := func(seed uint64) *Session {
		s, err := testEngine.OpenFile(path, Options{Provider: ort.CPU, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b, c := open(1), open(1), open(2)
	defer c.Close()
	defer b.Close()
	x := func(s *Session) *ort.Value { return s.byName["x"].value }
	if !x(a).SameMemory(x(b)) || x(a).SameMemory(x(c)) {
		t.Error("x lies elsewhere with the same seed, or in the same place with another")
	}
	if a.byName["W"].value.SameMemory(b.byName["W"].value) {
		t.Error("updated parameters are shared")
	}
	before, _, err := b.Input("x")
	if err != nil {
		t.Fatal(err)
	}
	if err := a.SetInput("x", FromFloat32s([]float32{9, 9, 9, 9}, 4)); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	after, _, err := b.Input("x")
	if err != nil || string(before.Data) != string(after.Data) {
		t.Errorf("the other session's x is now %v, %v", after.Data, err)
	}
	b.Close()
	c.Close()
	if n := len(testEngine.shared.made); n != 0 {
		t.Errorf("%d shared values are left", n)
	}
}

// TestMemoryErrorSizes: sizes of less than a mebibyte are said, and two that differ read so.
func TestMemoryErrorSizes(t *testing.T) {
	for want, err := range map[string]*MemoryError{
		"out of memory: parameters, state, feeds and session take 14.5 KiB before a step, the limit is 10.0 KiB": {Limit: 10 << 10, Beside: 14848},
		"out of memory: node n asks for 100 B where the step has 924 B live, beside 2.0 KiB of parameters, state, feeds and session: more than the limit of 2.5 KiB": {
			What: "node n", Limit: 2560, Need: 1024, Asked: 100, Beside: 2048},
		"out of memory: a tensor needs 1048577 B, 1048576 B are left": {What: "a tensor", Need: 1<<20 + 1, Available: 1 << 20},
	} {
		if got := err.Error(); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}
