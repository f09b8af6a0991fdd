// Package devicetest runs a package's tests once more on ONNX Runtime's CUDA provider,
// over the null device. A process has one library of ONNX Runtime, so they run in one of
// their own.
package devicetest

import (
	"flag"
	"os"
	"os/exec"
	"testing"

	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

const variable = "REMAT_TEST_CUDA"

// Library is the path of ONNX Runtime's GPU build in a process that tests it, and empty
// in another.
func Library() string { return os.Getenv(variable) }

// onGPU is set where the tests of such a process are to run on this machine's GPU.
const onGPU = "REMAT_TEST_GPU"

// Load loads the null device into a process that tests the GPU build, unless its tests
// are to run on a GPU.
func Load() error {
	if os.Getenv(onGPU) != "" {
		return nil
	}
	_, err := nulldevice.Load(nulldevice.Options{Memory: nulldevice.Unlimited})
	return err
}

// Again runs the tests that match a pattern of -run in such a process, with this one's
// flags, and returns what they print. The test fails where they do. Without the GPU
// build, or in such a process, it is skipped.
func Again(t *testing.T, pattern string) string {
	t.Helper()
	if Library() != "" {
		t.Skip("it runs already")
	}
	path, err := install.FindRehearsal("")
	if err == nil {
		err = nulldevice.Check(path)
	}
	if err != nil {
		t.Skipf("no rehearsal: %v; make rehearse-deps gets what it needs", err)
	}
	args := []string{"-test.v", "-test.run=" + pattern}
	for _, name := range []string{"test.short", "test.timeout", "test.skip", "update"} {
		if f := flag.Lookup(name); f != nil {
			args = append(args, "-"+name+"="+f.Value.String())
		}
	}
	c := exec.Command(os.Args[0], args...)
	c.Env = append(os.Environ(), variable+"="+path)
	out, err := c.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	return string(out)
}
