package runtime

import (
	"os"
	"testing"
)

// testEngine is the engine of all tests.
var testEngine *Engine

func TestMain(m *testing.M) {
	var err error
	if testEngine, err = New(""); err != nil {
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
