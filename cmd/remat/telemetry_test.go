package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/runtime/install"
)

// TestNoTelemetry: a command leaves nothing of ONNX Runtime's telemetry in the user's folders: without
// the number of the machine and the store of what is to be sent, nothing is sent either. Who asks for it gets it.
func TestNoTelemetry(t *testing.T) {
	library, err := install.Find("")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	do(t, "model gpt2-tiny -o "+filepath.Join(dir, "m.onnx"))
	program := asProgram(t)
	left := func(decided ...string) (files []string) {
		home := t.TempDir()
		c := program("run", filepath.Join(dir, "m.onnx"), "--quiet")
		env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "ORT_") || strings.HasPrefix(s, "CI=") })
		c.Env = append(env, append(decided, "REMAT_ORT="+library, "HOME="+home, "XDG_CACHE_HOME="+home, "TMPDIR="+home)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		err := filepath.WalkDir(home, func(path string, e fs.DirEntry, err error) error {
			if err == nil && !e.IsDir() {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	if files := left(); len(files) > 0 {
		t.Errorf("a run leaves %v", files)
	}
	if files := left("ORT_DISABLE_TELEMETRY=0"); len(files) == 0 {
		t.Log("this build of ONNX Runtime sends nothing by itself")
	}
}
