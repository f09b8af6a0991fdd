package onnx

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOutputs: files that belong together take the places of others together, or none of them
// does.
func TestOutputs(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"model", "weights"} {
		if err := os.WriteFile(at(name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(text string) {
		t.Helper()
		for _, name := range []string{"model", "weights"} {
			if data, err := os.ReadFile(at(name)); err != nil || string(data) != text {
				t.Errorf("%s holds %q, %v, want %q", name, data, err, text)
			}
			if info, err := os.Stat(at(name)); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s is %v, %v, want the permissions of before", name, info.Mode(), err)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 2 {
			t.Errorf("%d files, %v, want 2", len(entries), err)
		}
	}
	full := errors.New("no space left")
	err := Together(func(files *Outputs) error {
		files.Remove(at("model"))
		if err := files.Write(at("weights"), []byte("new")); err != nil {
			return err
		}
		return files.Replace(at("model"), func(f *os.File) error {
			_, err := f.WriteString("half")
			return errors.Join(err, full)
		})
	})
	if !errors.Is(err, full) {
		t.Errorf("error %v, want %v", err, full)
	}
	want("old")
	err = Together(func(files *Outputs) error {
		return errors.Join(files.Write(at("weights"), []byte("new")), files.Write(at("model"), []byte("new")))
	})
	if err != nil {
		t.Error(err)
	}
	want("new")
}

// TestOutdated: what no longer belongs beside files goes with them, and may be gone.
func TestOutdated(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("old"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := Together(func(files *Outputs) error {
		files.Remove(at("old"))
		files.Remove(at("none"))
		return files.Write(at("new"), nil)
	})
	if _, gone := os.Stat(at("old")); err != nil || !errors.Is(gone, os.ErrNotExist) {
		t.Errorf("%v, and what is outdated: %v", err, gone)
	}
}

// TestUmask: who may read what is written is what the process says.
func TestUmask(t *testing.T) {
	before := unix.Umask(0o077)
	defer unix.Umask(before)
	dir := t.TempDir()
	if err := WriteFile(filepath.Join(dir, "f"), nil); err != nil {
		t.Fatal(err)
	}
	if err := MakeFolder(filepath.Join(dir, "d"), func(string) error { return nil }); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"f": 0o600, "d": 0o700} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", name, info.Mode().Perm(), err, want)
		}
	}
}

// TestStale: what a process that was killed left of a file goes when the file is written again,
// and nothing else does.
func TestStale(t *testing.T) {
	dir := t.TempDir()
	long := time.Now().Add(-2 * stale)
	kept := []string{".w.1.2", ".w.x", ".v.7", "w.8", ".w."}
	for _, name := range append(kept, ".w.123", ".w.9", ".w.5") {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	if err := os.Chtimes(filepath.Join(dir, ".w.9"), now, now); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(filepath.Join(dir, ".w.5")) // as one that writes it
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "w"), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".w.123")); err == nil {
		t.Error("the file that nobody writes any more is left")
	}
	for _, name := range append(kept, ".w.9", ".w.5", "w") {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// TestScratch: files under a scratch's name go with it, and after a kill with the next one for the
// same file; what another process holds stays.
func TestScratch(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.sweep")
	s, err := NewScratch(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(s.Graph(), nil); err != nil {
		t.Fatal(err)
	}
	held := []string{filepath.Base(s.Graph()), filepath.Base(strings.TrimSuffix(s.Graph(), ".onnx"))}
	killed := []string{".m.sweep.123", ".m.sweep.123.onnx", ".m.sweep.123.safetensors", "..m.sweep.123.safetensors.7"}
	kept := append([]string{".m.sweep.12.onnx", ".m.sweep.123.onnx.x", ".m.sweep.1234.onnx", "m.sweep.123.onnx", ".n.sweep.123.onnx"}, held...)
	long := time.Now().Add(-2 * stale)
	for _, name := range append(killed, kept...) {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := os.Chtimes(f.Name(), long, long); err != nil {
			t.Fatal(err)
		}
	}
	next, err := NewScratch(path)
	if err != nil {
		t.Fatal(err)
	}
	next.Drop()
	for _, name := range killed {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s is left of a process that was killed", name)
		}
	}
	for _, name := range kept {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	s.Drop()
	for _, name := range held {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			t.Errorf("%s outlives its scratch", name)
		}
	}
	if s, err = NewScratch(path); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(s.Graph(), nil); err != nil {
		t.Fatal(err)
	}
	RemovePending()
	if left, _ := filepath.Glob(strings.TrimSuffix(s.Graph(), "onnx") + "*"); len(left) > 0 {
		t.Errorf("%s is left of a process that was interrupted", left)
	}
	if _, err := NewScratch(filepath.Join(dir, "none", "m")); err == nil || !strings.Contains(err.Error(), "no such") {
		t.Errorf("in a folder that is not there: %v", err)
	}
}
