package train

// The states of a folder: the last one, and those before it.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/onnx"
)

// A Folder is where a training writes. One process at a time has it.
type Folder struct {
	Dir  string
	Keep int // how many states stay, at least 1
	lock *os.File
	made bool     // by OpenFolder
	had  []string // names in it before
	last int64    // step of state.safetensors, where it is known to be whole; else -1
}

// A BusyError says that another process has the folder.
type BusyError struct{ Dir string }

func (e *BusyError) Error() string { return e.Dir + ": another remat train is writing here" }

// OpenFolder makes the folder where it is missing, takes it for this process, and takes
// away what a killed one left half written.
func OpenFolder(dir string, keep int) (*Folder, error) {
	err := os.Mkdir(dir, 0o777)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("folder %s: %w", dir, onnx.PathCause(err))
	}
	made := err == nil
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("folder %s: %w", dir, onnx.PathCause(err))
	}
	if info, err := f.Stat(); err != nil || !info.IsDir() {
		f.Close()
		return nil, fmt.Errorf("%s: is not a folder", dir)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err, unix.EWOULDBLOCK) {
		f.Close()
		return nil, &BusyError{dir}
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		f.Close()
		return nil, fmt.Errorf("folder %s: %w", dir, err)
	}
	o := &Folder{Dir: dir, Keep: max(keep, 1), lock: f, made: made, had: namesIn(dir), last: -1}
	for _, dir := range []string{dir, filepath.Join(dir, "weights")} {
		for _, name := range namesIn(dir) {
			if halfWritten.MatchString(name) {
				os.Remove(filepath.Join(dir, name))
			}
		}
	}
	return o, nil
}

// halfWritten are the names that files of a run have until they are whole; see
// onnx.ReplaceFile.
var halfWritten = regexp.MustCompile(`^\..+\.(safetensors|onnx|npy|jsonl|json|yaml|html)\.[0-9]+$`)

// Close lets other processes have the folder. One that was made for this run, and that
// nothing came of, goes.
func (o *Folder) Close() error {
	if o.made {
		os.Remove(o.Dir) // if it is empty
	}
	return o.lock.Close()
}

// Undo takes away what a run that never began has put there under these names, folders with
// all that they hold; what was there before stays.
func (o *Folder) Undo(names ...string) {
	for _, name := range names {
		if !slices.Contains(o.had, name) {
			os.RemoveAll(filepath.Join(o.Dir, name))
		}
	}
}

// older lists the steps of the states before the last one, rising.
func (o *Folder) older() []int64 {
	var steps []int64
	for _, name := range namesIn(o.Dir) {
		var step int64
		if n, _ := fmt.Sscanf(name, "state-%d.safetensors", &step); n == 1 && name == olderName(step) {
			steps = append(steps, step)
		}
	}
	slices.Sort(steps)
	return steps
}

func namesIn(dir string) []string {
	entries, _ := os.ReadDir(dir)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// Holds says whether there is a state, whole or not.
func (o *Folder) Holds() bool {
	return slices.Contains(namesIn(o.Dir), stateName) || len(o.older()) > 0
}

// Newest opens the newest whole state. Skipped are the errors of newer ones that are
// damaged or missing; with none that is whole they are the error. One that may well be whole,
// but cannot be read now, or by this version, is the error too: what follows it would be
// written over it.
func (o *Folder) Newest() (s *State, skipped []error, err error) {
	names := []string{stateName}
	for _, step := range slices.Backward(o.older()) {
		names = append(names, olderName(step))
	}
	for _, name := range names {
		s, err := OpenState(filepath.Join(o.Dir, name))
		if err == nil {
			o.last = -1
			if name == stateName {
				o.last = s.Position.Step
			}
			return s, skipped, nil
		}
		if mayBeWhole(err) {
			return nil, nil, err
		}
		skipped = append(skipped, err)
	}
	return nil, nil, errors.Join(skipped...)
}

// mayBeWhole says that an error is none of a state's content.
func mayBeWhole(err error) bool {
	var version *VersionError
	var system unix.Errno
	return errors.As(err, &version) || errors.As(err, &system) && system != unix.ENOENT
}

// At opens the state of a step.
func (o *Folder) At(step int64) (*State, error) {
	for _, name := range []string{stateName, olderName(step)} {
		s, err := OpenState(filepath.Join(o.Dir, name))
		if err != nil {
			continue
		}
		if s.Position.Step == step {
			o.last = -1
			if name == stateName {
				o.last = step
			}
			return s, nil
		}
		if err := s.Close(); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%s: has no whole state of step %d, which other ranks have", o.Dir, step)
}

// Save writes a state and returns its path. The state before it stays, as far
// as Keep says.
func (o *Folder) Save(s Holder, p Position) (string, error) {
	path := StatePath(o.Dir)
	if o.last >= 0 && o.last != p.Step && o.Keep > 1 {
		older := filepath.Join(o.Dir, olderName(o.last))
		err := os.Link(path, older)
		if errors.Is(err, os.ErrExist) {
			err = nil
		}
		if err != nil { // a file system without links: for a moment the state has its older name alone
			err = os.Rename(path, older)
		}
		if err != nil {
			return "", fmt.Errorf("%s: %w", older, onnx.PathCause(err))
		}
	}
	if err := writeState(path, s, p); err != nil {
		return "", err
	}
	o.last = p.Step
	if err := o.lock.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // the rename
		return "", fmt.Errorf("folder %s: %w", o.Dir, onnx.PathCause(err))
	}
	return path, o.prune(p.Step)
}

// badName is where a state goes that led to a loss that is no number.
const badName = "nan.safetensors"

// Reject puts the state of a step aside, if that is the last one: the next step finds
// that its loss is no number, so nobody can go on from it. The one before it becomes the
// last one. It returns the path and step of that; "" where there is none.
func (o *Folder) Reject(step int64) (path string, good int64, err error) {
	path = StatePath(o.Dir)
	older := o.older()
	switch {
	case o.last < 0 && len(older) > 0: // the last one is damaged
		good = older[len(older)-1]
		return filepath.Join(o.Dir, olderName(good)), good, nil
	case o.last < 0:
		return "", 0, nil
	case o.last != step:
		return path, o.last, nil
	}
	if err := os.Rename(path, filepath.Join(o.Dir, badName)); err != nil {
		return "", 0, fmt.Errorf("%s: %w", path, onnx.PathCause(err))
	}
	if o.last = -1; len(older) == 0 {
		return "", 0, nil
	}
	good = older[len(older)-1]
	if err := os.Rename(filepath.Join(o.Dir, olderName(good)), path); err != nil {
		return "", 0, fmt.Errorf("%s: %w", path, onnx.PathCause(err))
	}
	o.last = good
	return path, good, nil
}

// prune takes away all older states but the newest Keep-1 of those before step, and
// those from step on, of a time line that was left.
func (o *Folder) prune(step int64) error {
	before := o.older()
	var gone []int64
	for len(before) > 0 && before[len(before)-1] >= step {
		gone, before = append(gone, before[len(before)-1]), before[:len(before)-1]
	}
	gone = append(gone, before[:max(0, len(before)-(o.Keep-1))]...)
	for _, step := range gone {
		if err := os.Remove(filepath.Join(o.Dir, olderName(step))); err != nil {
			return fmt.Errorf("%s: %w", olderName(step), onnx.PathCause(err))
		}
	}
	return nil
}
