package main

import (
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/ortversion"
)

// TestUntried: doctor says where a library is newer than what was compared, on the CPU
// and, which is another release, on CUDA.
func TestUntried(t *testing.T) {
	cpu := []string{"CPUExecutionProvider"}
	cuda := []string{"CUDAExecutionProvider", "CPUExecutionProvider"}
	for _, c := range []struct {
		version   string
		providers []string
		want      string
	}{
		{ortversion.Oldest, cpu, ""},
		{ortversion.Current, cpu, ""},
		{ortversion.Newest, cpu, ""},
		{"1.99.0", cpu, "newer than " + ortversion.Newest + ", the last whose memory on the CPU's kernels"},
		{ortversion.Current, cuda, ""},
		{"1.99.0", cuda, "newer than " + ortversion.Current + ", the last whose memory on CUDA's kernels"},
	} {
		got := untried(c.version, c.providers)
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s with %v: %q, want %q", c.version, c.providers, got, c.want)
		}
	}
}

// TestDoctorWithoutTemporaryFolder: where a fact could not be tried for want of a file, another ONNX
// Runtime is no way out.
func TestDoctorWithoutTemporaryFolder(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "missing"))
	var out strings.Builder
	if code := run(context.Background(), []string{"doctor"}, &out, io.Discard); code != exitDone {
		t.Errorf("exit code %d", code)
	}
	text := out.String()
	if !strings.Contains(text, "TMPDIR names another") || strings.Contains(text, "use ONNX Runtime") {
		t.Errorf("doctor says\n%s", text)
	}
	if strings.Contains(text, "cuda provider: ") {
		t.Errorf("what is checked is named twice in\n%s", text)
	}
}
