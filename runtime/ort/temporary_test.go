package ort

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRemoveTemporary: a program that ends in the midst of things takes its
// temporary folders with it.
func TestRemoveTemporary(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	dir, err := TemporaryDir("remat-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := TemporaryDir("remat-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := DropTemporary(other); err != nil {
		t.Fatal(err)
	}
	RemoveTemporary()
	t.Cleanup(func() { temporary.ended = false })
	if late, err := TemporaryDir("remat-test-"); err == nil {
		t.Errorf("%s was made after the end", late)
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := DropTemporary(dir); err != nil {
		t.Error(err)
	}
}

// TestSweepTemporary: what a killed process left goes with the next folder that is made, and nothing else does.
func TestSweepTemporary(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	killed := exec.Command(os.Args[0], "-test.run", "TestKilledWithFolder")
	killed.Env = append(os.Environ(), "REMAT_KILLED=1")
	if err := killed.Run(); err == nil {
		t.Fatal("the other process was not killed")
	}
	if left, err := filepath.Glob(filepath.Join(temp, "remat-test-*")); err != nil || len(left) != 1 {
		t.Fatalf("the killed process left %v, %v", left, err)
	}

	kept := map[string]bool{}
	folder := func(name string) string {
		dir := filepath.Join(temp, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		kept[name] = true
		return dir
	}
	write := func(path string) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	running := folder("remat-test-1") // of a process that runs
	write(filepath.Join(running, inUse))
	f, err := os.Open(filepath.Join(running, inUse))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(folder("remat-test-2"), "inputs"))   // no lock: not one of these
	write(filepath.Join(folder("remat-run-of-mine"), inUse)) // another name
	shared := folder("remat-test-3")                         // others may write into it
	write(filepath.Join(shared, inUse))
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	elsewhere := folder("elsewhere")
	write(filepath.Join(elsewhere, inUse))
	if err := os.Symlink(elsewhere, filepath.Join(temp, "remat-test-4")); err != nil {
		t.Fatal(err)
	}
	kept["remat-test-4"] = true
	if err := os.Symlink(filepath.Join(elsewhere, inUse), filepath.Join(folder("remat-test-5"), inUse)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(folder("remat-test-6"), inUse), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := folder("remat-test-7") // with a link out of it, which is not followed
	delete(kept, "remat-test-7")
	write(filepath.Join(gone, inUse))
	if err := os.Symlink(elsewhere, filepath.Join(gone, "link")); err != nil {
		t.Fatal(err)
	}

	temporary.swept = false
	dir, err := TemporaryDir("remat-test-")
	if err != nil {
		t.Fatal(err)
	}
	kept[filepath.Base(dir)] = true
	left, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() == ".ses" { // ONNX Runtime's own
			continue
		}
		if !kept[e.Name()] {
			t.Errorf("%s was left", e.Name())
		}
		delete(kept, e.Name())
	}
	for name := range kept {
		t.Errorf("%s was removed", name)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, inUse)); err != nil {
		t.Error(err)
	}
	sweepTemporary(temp)
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a folder in use was removed: %v", err)
	}
	if err := DropTemporary(dir); err != nil {
		t.Error(err)
	}
}

// TestKilledWithFolder is the process that TestSweepTemporary has killed.
func TestKilledWithFolder(t *testing.T) {
	if os.Getenv("REMAT_KILLED") == "" {
		t.Skip("is run by TestSweepTemporary")
	}
	dir, err := TemporaryDir("remat-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("f"), 0o600); err != nil {
		t.Fatal(err)
	}
	unix.Kill(os.Getpid(), unix.SIGKILL)
}
