package main

import (
	"bytes"
	"context"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/runtime/install"
)

// A folder is where a test lets commands work, with the installed ONNX Runtime.
type folder struct {
	t   *testing.T
	dir string
}

func newFolder(t *testing.T) folder {
	t.Helper()
	library, err := install.Find("")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("REMAT_ORT", library)
	return folder{t, t.TempDir()}
}

// at is the path of a file in the folder.
func (f folder) at(name string) string { return filepath.Join(f.dir, name) }

// do runs a command that must succeed, and returns what it prints.
func (f folder) do(args ...string) []byte {
	f.t.Helper()
	var out, diag bytes.Buffer
	if code := run(context.Background(), args, &out, &diag); code != exitDone {
		f.t.Fatalf("remat %q: exit code %d\n%s%s", args, code, &out, &diag)
	}
	return out.Bytes()
}
