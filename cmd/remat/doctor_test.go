package main

import (
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
