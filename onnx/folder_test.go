package onnx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestMakeFolder: a folder is there as a whole or not at all, and no other folder's files go.
func TestMakeFolder(t *testing.T) {
	dir := t.TempDir()
	put := func(name string) func(string) error {
		return func(to string) error { return os.WriteFile(filepath.Join(to, name), []byte(name), 0o644) }
	}
	fails := errors.New("fails")
	left := func() int {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	made := filepath.Join(dir, "new")
	if err := MakeFolder(made, func(to string) error { return errors.Join(put("half")(to), fails) }); !errors.Is(err, fails) || left() != 0 {
		t.Fatalf("error %v, %d entries left", err, left())
	}
	if err := os.Mkdir(made, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := MakeFolder(made, put("a")); err != nil { // over an empty folder
		t.Fatal(err)
	}
	if err := MakeFolder(made, put("b")); err == nil {
		t.Error("a folder with files was replaced")
	}
	late := filepath.Join(dir, "late")
	err := MakeFolder(late, func(to string) error { // the place is taken meanwhile
		return errors.Join(put("c")(to), os.Mkdir(late, 0o755), put("other")(late))
	})
	if err == nil {
		t.Error("a folder that came meanwhile was replaced")
	}
	for _, file := range []string{"new/a", "late/other"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			t.Error(err)
		}
	}
	if left() != 2 {
		t.Errorf("%d entries, want 2", left())
	}
	if err := MakeFolder(filepath.Join(made, "a"), put("d")); err == nil {
		t.Error("a file was replaced")
	}
	if err := MakeFolder(filepath.Join(dir, "no", "where"), put("e")); err == nil {
		t.Error("a folder was made in one that is missing")
	}
}

// TestFolderErrors: an error of a file in a folder that is being made names the file at its place,
// and not the call of the system's that failed.
func TestFolderErrors(t *testing.T) {
	made := filepath.Join(t.TempDir(), "new")
	err := MakeFolder(made, func(to string) error {
		file := filepath.Join(to, "weights")
		cause := &os.PathError{Op: "write", Path: file, Err: os.NewSyscallError("copy_file_range", syscall.ENOSPC)}
		return fmt.Errorf("%s: %w", file, PathCause(cause))
	})
	if want := made + "/weights: no space left on device"; err == nil || err.Error() != want || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v, want %s", err, want)
	}
}
