package runtime

import (
	"os"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/ort/nulldevice/devicetest"
)

// TestRehearsed runs the tests of lifetimes once more in a process that rehearses.
func TestRehearsed(t *testing.T) {
	if out := devicetest.Again(t, "LeaveNothing|InPlaceOnTheDevice|StopNobody|SlabOnTheDevice|HostInputs|ArenaOfSpared|WorkspaceOnTheDevice|RecurrenceOnTheDevice"); !strings.Contains(out, "TestInPlaceOnTheDevice") {
		t.Error("no test ran")
	}
}

// testEngine is the engine of all tests.
var testEngine *Engine

func TestMain(m *testing.M) {
	var err error
	if gpu := devicetest.Library(); gpu != "" {
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

// onlyRehearsed skips a test in a process that does not rehearse.
func onlyRehearsed(t *testing.T) {
	t.Helper()
	if testEngine.device == nil {
		t.Skip("not a rehearsal: TestRehearsed runs it in one")
	}
}
