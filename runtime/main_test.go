package runtime

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/install"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// cudaLibrary names the variable that holds the path of ONNX Runtime's GPU build in a
// process that tests the CUDA provider, rehearsed.
const cudaLibrary = "REMAT_TEST_CUDA"

// TestRehearsed runs the tests of lifetimes once more in a process that rehearses.
func TestRehearsed(t *testing.T) {
	if os.Getenv(cudaLibrary) != "" {
		t.Skip("it runs already")
	}
	path, err := install.FindRehearsal("")
	if err == nil {
		err = nulldevice.Check(path)
	}
	if err != nil {
		t.Skipf("no rehearsal: %v; make test-rehearse gets what it needs", err)
	}
	c := exec.Command(os.Args[0], "-test.run", "LeaveNothing|InPlaceOnTheDevice|StopNobody", "-test.v")
	c.Env = append(os.Environ(), cudaLibrary+"="+path)
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "TestSessionsLeaveNothing/cuda") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// testEngine is the engine of all tests.
var testEngine *Engine

func TestMain(m *testing.M) {
	var err error
	if gpu := os.Getenv(cudaLibrary); gpu != "" {
		testEngine, err = NewRehearsal(gpu, 0)
	} else {
		testEngine, err = New("")
	}
	if err != nil {
		println(err.Error())
		os.Exit(1)
	}
	code := m.Run()
	if err := testEngine.Close(); err != nil {
		println(err.Error())
		code = 1
	}
	os.Exit(code)
}
