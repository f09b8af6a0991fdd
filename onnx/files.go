package onnx

// Files that are there as a whole or not at all, and several that belong together, as a
// model and its weights do: each is filled under a temporary name beside its place, and they
// are renamed one right after the other once all are whole. So a disk that is full, an error
// in the last of them, and a process that is killed leave what was there before.

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Outputs are files that Together puts into their places.
type Outputs struct {
	written  []written
	outdated []string
}

// written is a file that lies beside its place.
type written struct {
	temp, path string
	file       *os.File // open, as its lock says that somebody writes it
}

// Replace lets write fill a file that is to be put at path.
func (s *Outputs) Replace(path string, write func(*os.File) error) error {
	if err := Replaceable(path); err != nil {
		return err
	}
	removeStale(path)
	f, err := createBeside(path)
	if err != nil {
		return fmt.Errorf("%s: %w", path, PathCause(err))
	}
	s.written = append(s.written, written{f.Name(), path, f})
	if err := write(f); err != nil {
		return fmt.Errorf("%s: %w", path, PathCause(err))
	}
	if at, err := os.Stat(path); err == nil { // who may read it is not for a new content to say
		if err := f.Chmod(at.Mode().Perm()); err != nil {
			return fmt.Errorf("%s: %w", path, PathCause(err))
		}
	}
	return nil
}

// Write is Replace by data.
func (s *Outputs) Write(path string, data []byte) error {
	return s.Replace(path, func(f *os.File) error {
		_, err := bytes.NewReader(data).WriteTo(f)
		return err
	})
}

// Remove takes away what lies at path and no longer belongs there, once the files are in their
// places.
func (s *Outputs) Remove(path string) { s.outdated = append(s.outdated, path) }

// commit puts the files into their places, in the order in which they were written.
func (s *Outputs) commit() error {
	for len(s.written) > 0 {
		w := s.written[0]
		err := w.file.Close() // some file systems say only now that they are full
		if err == nil {
			err = os.Rename(w.temp, w.path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", w.path, PathCause(err))
		}
		pending.Delete(w.temp)
		s.written = s.written[1:]
	}
	for _, path := range s.outdated {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w", path, PathCause(err))
		}
	}
	return nil
}

// discard takes away what no commit put into its place.
func (s *Outputs) discard() {
	for _, w := range s.written {
		w.file.Close()
		os.Remove(w.temp)
		pending.Delete(w.temp)
	}
	s.written = nil
}

// Together puts the files that write writes into their places, or after an error leaves all
// as it was.
func Together(write func(files *Outputs) error) error {
	var files Outputs
	defer files.discard()
	if err := write(&files); err != nil {
		return err
	}
	return files.commit()
}

// ReplaceFile lets write fill a file beside path and renames it into place
// when write succeeded; else nothing is left behind.
func ReplaceFile(path string, write func(*os.File) error) error {
	return Together(func(files *Outputs) error { return files.Replace(path, write) })
}

// tempName is the pattern for a file beside path; a long name is cut, as the
// pattern's own letters must find room too.
func tempName(path string) string {
	base := filepath.Base(path)
	return "." + base[:min(len(base), 200)] + ".*"
}

// createBeside creates a file under a temporary name beside path, for those to read for whom
// the process's umask says so, and locks it.
func createBeside(path string) (f *os.File, err error) {
	_, err = nameBeside(path, func(name string) (err error) {
		f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
		return err
	})
	if err == nil {
		_ = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) // not every file system has locks
	}
	return f, err
}

// nameBeside has make create what it is to create under a name of tempName's that is free,
// which RemovePending then knows.
func nameBeside(path string, make func(name string) error) (string, error) {
	pattern := filepath.Join(filepath.Dir(path), strings.TrimSuffix(tempName(path), "*"))
	for {
		name := pattern + fmt.Sprint(rand.Uint32())
		pending.Store(name, nil)
		err := make(name)
		if err == nil {
			return name, nil
		}
		pending.Delete(name)
		if !errors.Is(err, os.ErrExist) {
			return "", err
		}
	}
}

// A Scratch is a name for files that lie beside another for a while: as long as somebody holds it,
// its lock lies there under the name itself.
type Scratch struct {
	stem string
	lock *os.File
}

// scratch are the endings of the files of a Scratch.
var scratch = []string{".onnx", ".safetensors"}

// NewScratch makes a name beside path, in whose folder the files have to lie. What processes
// that were killed left under such a name goes.
func NewScratch(path string) (*Scratch, error) {
	removeStale(path)
	f, err := createBeside(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Dir(path), PathCause(err))
	}
	s := &Scratch{stem: f.Name(), lock: f}
	for _, end := range scratch {
		pending.Store(s.stem+end, nil)
	}
	return s, nil
}

// Graph is the name for a graph; weights beside it, under its name, are the scratch's too.
func (s *Scratch) Graph() string { return s.stem + scratch[0] }

// Drop takes the files away.
func (s *Scratch) Drop() {
	for _, end := range scratch {
		os.Remove(s.stem + end)
		pending.Delete(s.stem + end)
	}
	os.Remove(s.stem)
	pending.Delete(s.stem)
	s.lock.Close()
}

// stale is how old a file under a temporary name is before it is asked whether anybody still
// writes it: far longer than it takes to lock one that was just created.
const stale = time.Minute

// removeStale takes away what processes that were killed left of a file half written, or under
// a scratch's name beside it: their locks went with them.
func removeStale(path string) {
	dir := filepath.Dir(path)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	stem := regexp.QuoteMeta(strings.TrimSuffix(tempName(path), "*")) + "[0-9]+"
	temporary := regexp.MustCompile("^" + stem + "$")
	ofScratch := regexp.MustCompile(`^\.?(` + stem + `)\.(onnx|safetensors)(\.[0-9]+)?$`) // whole, or half written
	for _, e := range entries {
		if !temporary.MatchString(e.Name()) || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < stale {
			continue
		}
		name := filepath.Join(dir, e.Name())
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			for _, other := range entries {
				if m := ofScratch.FindStringSubmatch(other.Name()); m != nil && m[1] == e.Name() && other.Type().IsRegular() {
					os.Remove(filepath.Join(dir, other.Name()))
				}
			}
			os.Remove(name)
		}
		f.Close()
	}
}
