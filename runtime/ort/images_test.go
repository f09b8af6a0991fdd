package ort

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// residentOf is what the process holds of a library, in kB: of what it may not write, and
// of what it may.
func residentOf(t *testing.T, library string) (fixed, written int64) {
	t.Helper()
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var of *int64
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		var kb int64
		switch {
		case strings.Contains(fields[0], "-"):
			of = nil
			if strings.Contains(lines.Text(), library) {
				if of = &fixed; strings.Contains(fields[1], "w") {
					of = &written
				}
			}
		case fields[0] == "Rss:" && of != nil:
			if _, err := fmt.Sscan(fields[1], &kb); err != nil {
				t.Fatal(err)
			}
			*of += kb
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return fixed, written
}

// TestTrimImages: a session leaves most of the library's pages untouched once they were
// given back, its variables stay, and it computes what it computed. What it touches comes
// back by little.
func TestTrimImages(t *testing.T) {
	const library = "libonnxruntime"
	s := newSession(t, reluModel(Float32, 3), SessionOptions{Provider: CPU})
	x := newTensor(t, Float32, 3)
	copy(floats(x), []float32{-1, 2, -3})
	run := func() []float32 { return slices.Clone(floats(runOne(t, s, map[string]*Value{"x": x})[0])) }
	want := run()
	before, variables := residentOf(t, library)
	if before < 1<<10 || variables == 0 {
		t.Fatalf("%d kB of the library are there before, and %d of variables", before, variables)
	}
	if given := TrimImages(); given < before<<10 {
		t.Errorf("given back %d bytes of addresses, where %d kB are in use", given, before)
	}
	after, kept := residentOf(t, library)
	if after > before/4 || kept < variables {
		t.Errorf("%d kB, before %d; of variables %d, before %d", after, before, kept, variables)
	}
	if got := run(); !slices.Equal(got, want) || !slices.Equal(want, []float32{0, 2, 0}) {
		t.Errorf("got %v, before %v", got, want)
	}
	again, _ := residentOf(t, library)
	if again <= after {
		t.Errorf("%d kB after another run, %d before it: it ran through nothing", again, after)
	}
	if again > before/6 { // undivided, 4.0 MB of 16.5 come back, else 1.9
		t.Errorf("%d kB after another run, of %d", again, before)
	}
	t.Logf("%d kB before, %d after, %d after another run", before, after, again)
}
