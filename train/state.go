package train

// States: everything that the next step depends on, in one safetensors file.
//
//	tensors    every input that the graph updates: parameters, optimizer state,
//	           summed gradients, the norm of the step before
//	metadata   remat.training  where the training stands, as JSON (Position)
//	           remat.adapters  of a graph with low-rank pairs, their ranks and alphas
//	           remat.apart     what holds a parameter's numbers, and is frozen
//	           remat.sha256    a hash of these and of the tensors
//
// No time, path or machine is in it: states of equal runs are equal byte for byte.
//
// A state is written beside, synced, and renamed over state.safetensors; the one that
// was there stays as state-STEP.safetensors, by a second link made before. So at any
// moment there is a whole state, and a crash leaves at most a file beside, which the
// next run takes away. One that holds a number that is not finite is not written.

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// Keys of a state's metadata.
const (
	positionKey = "remat.training"
	hashKey     = "remat.sha256"
)

// positionVersion is that of Position's meaning. The hash is made in the same way whatever
// the version is, so that a state of another one is told from one that is damaged.
const positionVersion = 1

// A Position says where a training stands, and of what it is.
type Position struct {
	Version int   `json:"version"`
	Step    int64 `json:"step"`
	// Tokens were trained on.
	Tokens int64 `json:"tokens"`
	// Runs of the graph, of which Skipped overflowed; the next micro-batch is number
	// Runs. Good is how many in a row did not overflow, for the growth of LossScale,
	// which is 0 where the graph has none.
	Runs      int     `json:"runs"`
	Skipped   int     `json:"skipped_runs"`
	Good      int     `json:"good_runs"`
	LossScale float64 `json:"loss_scale"`
	// SkippedSteps are those that ended with an overflow, LossFirst is the loss of
	// the first step.
	SkippedSteps int64   `json:"skipped_steps"`
	LossFirst    float64 `json:"loss_first"`
	// Seed is that of random operators, Graph and Data identify the graph and the
	// batches.
	Seed  uint64 `json:"seed"`
	Graph string `json:"graph"`
	Data  string `json:"data"`
	// Frozen identifies the weights that the graph reads from files and does not train, ""
	// where it has none, or in a state of before there was this.
	Frozen string `json:"frozen,omitempty"`
	// Ranks is how many trained, 0 for one that is alone, and Sync how they agreed.
	Ranks int    `json:"ranks,omitempty"`
	Sync  string `json:"sync,omitempty"`
}

// Progress is the position for runtime.Options.From.
func (p *Position) Progress() runtime.Progress {
	return runtime.Progress{Runs: p.Runs, Skipped: p.Skipped, Good: p.Good, LossScale: p.LossScale}
}

// A NotFiniteStateError says that a state is not worth saving.
type NotFiniteStateError struct{ Name string }

func (e *NotFiniteStateError) Error() string {
	return fmt.Sprintf("%q holds a NaN or an infinity", e.Name)
}

// writeState writes the values of a training that stands at p.
func writeState(path string, s Holder, p Position) error {
	names := s.Updated()
	infos := make([]safetensors.Info, len(names))
	for i, name := range names {
		dtype, shape, err := s.ShapeOf(name)
		if err != nil {
			return err
		}
		infos[i] = safetensors.Info{Name: name, DType: dtype, Shape: shape}
	}
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	meta := map[string]string{"format": "pt", positionKey: string(text), hashKey: strings.Repeat("0", 2*sha256.Size)}
	for _, key := range step.Noted {
		if text, ok := s.Metadata(key); ok {
			meta[key] = text
		}
	}
	layout, err := safetensors.Plan(infos, meta)
	if err != nil {
		return err
	}
	return layout.Create(path, func(f *os.File) error {
		sum, _ := newSum(meta)
		for _, t := range layout.Tensors {
			err := s.View(t.Name, func(v runtime.Tensor) error { return writeTensor(f, sum, t, v.Data) })
			if err != nil {
				return err
			}
		}
		meta[hashKey] = hex.EncodeToString(sum.Sum(nil))
		if err := layout.Reseal(f, meta); err != nil {
			return err
		}
		return f.Sync()
	})
}

// writeTensor writes a tensor while it is hashed and looked at.
func writeTensor(f *os.File, sum hash.Hash, t safetensors.Info, data []byte) error {
	hashed := make(chan any, 1)
	go func() {
		defer func() { hashed <- recover() }()
		debug.SetPanicOnFault(true)
		addTensor(sum, t, data)
	}()
	finite := finite(t.DType, data)
	var err error
	if finite {
		_, err = f.WriteAt(data, t.Offset)
	}
	if fault := <-hashed; fault != nil {
		panic(fault)
	}
	if !finite {
		return &NotFiniteStateError{t.Name}
	}
	return err
}

// newSum begins the hash of a state with the entries of its metadata that say what it is of, and
// counts them.
func newSum(meta map[string]string) (sum hash.Hash, entries int) {
	sum = sha256.New()
	for _, key := range append([]string{positionKey}, step.Noted...) {
		if text := meta[key]; text != "" {
			fmt.Fprintf(sum, "%d\n%s\n", len(text), text)
			entries++
		}
	}
	return sum, entries
}

func addTensor(sum hash.Hash, t safetensors.Info, data []byte) {
	fmt.Fprintf(sum, "%q %s %v\n", t.Name, t.DType, t.Shape)
	sum.Write(data)
}

// finite says that no element is NaN or infinite: none has all bits of its exponent
// set.
func finite(d onnx.DType, data []byte) bool {
	le := binary.LittleEndian
	switch d {
	case onnx.Float32:
		for ; len(data) >= 4; data = data[4:] {
			if le.Uint32(data)&0x7f800000 == 0x7f800000 {
				return false
			}
		}
	case onnx.Float64:
		for ; len(data) >= 8; data = data[8:] {
			if le.Uint64(data)&0x7ff0000000000000 == 0x7ff0000000000000 {
				return false
			}
		}
	case onnx.Float16, onnx.BFloat16:
		mask := uint16(0x7c00)
		if d == onnx.BFloat16 {
			mask = 0x7f80
		}
		for ; len(data) >= 2; data = data[2:] {
			if le.Uint16(data)&mask == mask {
				return false
			}
		}
	}
	return true
}

// A StateError says why a file is no state to go on from.
type StateError struct {
	Path, Reason string
}

func (e *StateError) Error() string { return e.Path + ": " + e.Reason }

// A VersionError says that a state is whole, and that another version of the program can go on
// from it.
type VersionError struct {
	Path    string
	Version int
}

func (e *VersionError) Error() string {
	return fmt.Sprintf("%s: a state of version %d; this program reads version %d", e.Path, e.Version, positionVersion)
}

// A State is a state file, mapped privately: its tensors may become a session's, which
// then writes them in memory, not in the file, or copies those that are not aligned. Close it after the session.
type State struct {
	Path     string
	Position Position
	file     *safetensors.File
}

// OpenState maps a state file and checks it as a whole: its hash, so all of it is read.
func OpenState(path string) (*State, error) {
	f, err := safetensors.OpenPrivate(path)
	if err != nil {
		return nil, err
	}
	s := &State{Path: path, file: f}
	if err := s.check(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return s, nil
}

func (s *State) check() (err error) {
	text, ok := s.file.Metadata[positionKey]
	if !ok {
		return &StateError{s.Path, "not a state of remat train: it does not say where the training stands"}
	}
	if err := json.Unmarshal([]byte(text), &s.Position); err != nil {
		return &StateError{s.Path, "damaged: " + err.Error()}
	}
	p := &s.Position
	if !matches(s.file) {
		return &StateError{s.Path, "damaged: its content does not match its hash"}
	}
	if p.Version != positionVersion {
		return &VersionError{s.Path, p.Version}
	}
	const most = 1 << 40 // far beyond any training, and safe to count with
	if p.Step < 0 || p.Step > most || p.Runs < 0 || p.Runs > most || p.Tokens > 1<<60 || p.Skipped < 0 || p.Skipped > p.Runs || p.Good < 0 || p.Tokens < 0 || !(p.LossScale >= 0) {
		return &StateError{s.Path, "damaged: its position makes no sense"}
	}
	return nil
}

// matches says that a state holds what it was written with, by its hash: all of it is read.
func matches(f *safetensors.File) bool {
	sum, entries := newSum(f.Metadata)
	for _, t := range f.Tensors {
		addTensor(sum, t, f.Bytes(t))
	}
	m := f.Metadata
	return hex.EncodeToString(sum.Sum(nil)) == m[hashKey] && m["format"] == "pt" && len(m) == entries+2
}

// Intact says in an error that a file that was written as a state is not what was written.
// Weights that no training wrote have no hash, and are taken as they are.
func Intact(f *safetensors.File) error {
	if _, ok := f.Metadata[hashKey]; !ok || matches(f) {
		return nil
	}
	return &StateError{f.Path, fmt.Sprintf("damaged, as its content does not match its hash: take the state before it, or, if you changed it, take %q out of its metadata", hashKey)}
}

// Close gives the mapping back.
func (s *State) Close() error { return s.file.Close() }

// Values are the state's tensors by name, for runtime.Options.Own.
func (s *State) Values() map[string]runtime.Tensor {
	values := make(map[string]runtime.Tensor, len(s.file.Tensors))
	for _, t := range s.file.Tensors {
		values[t.Name] = runtime.Tensor{Type: t.DType, Shape: t.Shape, Data: s.file.Bytes(t)}
	}
	return values
}

// Start is the position before the first step of a training: of a graph with that
// identity, on those batches, with that seed of random operators.
func Start(graph string, b Batches, seed uint64) Position {
	p := Position{Version: positionVersion, Graph: graph, Seed: seed}
	if i, ok := b.(Identified); ok {
		p.Data = i.Identity()
	}
	return p
}

// Continues says in an error why a training that would begin at a position cannot go on
// from the state: it has another graph, other frozen weights, other batches or another seed.
func (s *State) Continues(start Position, b Batches) error {
	p := &s.Position
	if p.Graph != start.Graph {
		return &StateError{s.Path, "it is the state of another graph"}
	}
	if p.Frozen != "" && p.Frozen != start.Frozen {
		return &StateError{s.Path, "it was trained with other frozen weights than the graph's files hold now: put those back, or start another run"}
	}
	if i, ok := b.(Identified); ok {
		if err := i.CheckIdentity(p.Data); err != nil {
			return &StateError{s.Path, err.Error()}
		}
	}
	if p.Seed != start.Seed {
		return &StateError{s.Path, fmt.Sprintf("it was trained with the seed %d, not %d", p.Seed, start.Seed)}
	}
	if p.Sync != start.Sync || p.Ranks != start.Ranks && p.Sync != SyncStep {
		return &StateError{s.Path, fmt.Sprintf("it is that of %s, not of %s", together(p), together(&start))}
	}
	return nil
}

// SyncStep is how ranks agree that hold the same after each step, so that others may go
// on in their place.
const SyncStep = "step"

// together says who trained.
func together(p *Position) string {
	if p.Ranks == 0 {
		return "a training without ranks"
	}
	return fmt.Sprintf("--ranks %d --sync %s", p.Ranks, p.Sync)
}

// Fits says in an error what a training that takes the state's values lacks or has
// otherwise.
func (s *State) Fits(training Holder) error {
	names := training.Updated()
	for _, name := range names {
		if _, ok := s.file.Lookup(name); !ok {
			return &StateError{s.Path, fmt.Sprintf("it has no value for %q: it is the state of another graph", name)}
		}
	}
	if len(names) != len(s.file.Tensors) {
		return &StateError{s.Path, fmt.Sprintf("it has %d values, the graph updates %d: it is the state of another graph", len(s.file.Tensors), len(names))}
	}
	return nil
}

// stateName is the last state of a folder; olderName those before it.
const stateName = "state.safetensors"

func olderName(step int64) string { return fmt.Sprintf("state-%08d.safetensors", step) }

// StatePath is the last state in a folder.
func StatePath(dir string) string { return filepath.Join(dir, stateName) }
