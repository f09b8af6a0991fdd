package pipeline

// A model file, read once.

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/normalize"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

// A Source is a model file that was read, and what is known of it as it was: its
// hash, the files beside it that hold weights, and the peak that it promises.
type Source struct {
	Path string
	// Model is the file as it was read: whoever changes it works on a copy.
	Model *onnx.Model

	hash     string
	data     []string
	copies   []*onnx.Files // of the model's copies, which go when nobody uses them
	promised int64
	broken   bool
}

// Load reads a model file. The caller closes the source after the last use of its
// model.
func Load(path string) (*Source, error) {
	m, err := onnx.Load(path)
	if err != nil {
		return nil, err
	}
	s := &Source{Path: path, Model: m, data: weightFiles(m, path)}
	s.promised, s.broken = brokenPromise(m)
	return s, nil
}

// With is a source of a model in memory that was made of this one's, which outlives it.
func (s *Source) With(m *onnx.Model) *Source {
	return &Source{Path: s.Path, Model: m, hash: s.Hash(), data: s.data}
}

// Close releases the file and the copies of its model. It reads nothing more of the file, which
// may be gone or shorter by then.
func (s *Source) Close() error {
	err := s.Slim()
	return errors.Join(s.Model.Close(), err)
}

// GiveUp is Close where somebody else has become the model's owner.
func (s *Source) GiveUp() error {
	s.Hash() // which outlives the mapping
	return s.Slim()
}

// Slim releases the weights of the copies of the model that Typed and Sized made.
func (s *Source) Slim() error {
	var err error
	for _, f := range s.copies {
		err = errors.Join(err, f.Close())
	}
	s.copies = nil
	return err
}

// copy is a copy of the model whose weights can be read as long as the source lives.
func (s *Source) copy() (*onnx.Model, error) {
	m, err := s.Model.Clone()
	if err == nil {
		s.copies = append(s.copies, m.Files())
	}
	return m, err
}

// Hash is the file's sha256 in hexadecimal.
func (s *Source) Hash() string {
	if s.hash == "" {
		s.hash = s.Model.SHA256()
	}
	return s.hash
}

// sign notes in a model that it was made of the source's, and by which version.
func (s *Source) sign(m *onnx.Model) {
	m.SetMetadata(VersionKey, Version)
	m.SetMetadata(SourceKey, s.Hash())
}

// DataFiles are the files beside the model that hold its weights.
func (s *Source) DataFiles() []string { return s.data }

// Files are the model's file and those that hold its weights.
func (s *Source) Files() []string { return append([]string{s.Path}, s.data...) }

// Broken reports that the file promises a live peak, in bytes, of a graph that is
// not the one it holds.
func (s *Source) Broken() (promised int64, broken bool) { return s.promised, s.broken }

// Typed is a copy of the model, checked, with its types inferred. It lives as long
// as the source, or until Slim.
func (s *Source) Typed(dims map[string]int64) (*onnx.Model, error) {
	return s.prepared(dims, Type)
}

// Executed is the model as a session is to run it: with its functions written out, as it is predicted. ONNX
// Runtime would write them out in an order of its own, and roles, and what may be written in place, are of
// nodes. After that it is the source's model.
func (s *Source) Executed() (*onnx.Model, error) {
	if _, err := upgrade.Functions(s.Model); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return s.Model, nil
}

// asRead is a copy of a typed model that says no more of extents than the file that was read, which may
// hide them from ONNX Runtime; only numbers for free extents stay, unless a session gets these as dims.
func asRead(m *onnx.Model, dims map[string]int64) (*onnx.Model, error) {
	defer m.Graph.AsRead(len(dims) > 0)()
	return m.Clone()
}

// prepared is a copy of the model on which prepare has worked.
func (s *Source) prepared(dims map[string]int64, prepare func(*onnx.Model, map[string]int64) error) (*onnx.Model, error) {
	m, err := s.copy()
	if err == nil {
		err = prepare(m, dims)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return m, nil
}

// Training reports a graph that returns gradients or updated parameters: as given says,
// unless that is nil, its metadata, or the graph itself.
func (s *Source) Training(dims map[string]int64, given *step.Roles) (bool, error) {
	m, err := s.Typed(dims)
	if err != nil {
		return false, err
	}
	roles, _ := FoundRoles(m, given)
	return roles.Training(), nil
}

// Sized is a copy of the model, typed, that is to be planned for: every dimension
// needs a number, from dims or from the file, and every operator known shapes. What
// dims fix is noted in the model. The error may be a FreeDimsError.
func (s *Source) Sized(dims map[string]int64) (*onnx.Model, error) {
	return s.prepared(dims, sized)
}

func sized(m *onnx.Model, dims map[string]int64) error {
	free := FreeDims(m)
	open := slices.DeleteFunc(slices.Clone(free), func(name string) bool { _, given := dims[name]; return given })
	if len(open) > 0 {
		return &FreeDimsError{open}
	}
	if err := Type(m, dims); err != nil {
		return err
	}
	if err := NoteDims(m, free, dims); err != nil {
		return err
	}
	if Known(m, dims) == nil {
		return nil
	}
	// A list may have had no length while a dimension was free.
	if err := normalize.Lists(m, dims); err != nil {
		return err
	}
	if err := Type(m, dims); err != nil {
		return err
	}
	return Known(m, dims)
}

// A FreeDimsError lists dimensions of inputs that need a number.
type FreeDimsError struct{ Names []string }

// Error names them in one line.
func (e *FreeDimsError) Error() string {
	return "planning needs a size for every dimension; missing: " + strings.Join(e.Names, ", ")
}

// brokenPromise looks at a model as it was loaded: inferring its types changes it.
func brokenPromise(m *onnx.Model) (promised int64, broken bool) {
	want, ok := m.Metadata(PromiseKey)
	text, also := m.Metadata(PeakKey)
	promised, err := strconv.ParseInt(text, 10, 64)
	if !ok || !also || err != nil {
		return 0, false
	}
	return promised, m.Fingerprint() != want
}
