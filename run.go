package remat

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Float32s is a tensor of float32 values.
func Float32s(values []float32, dims ...int64) Tensor { return runtime.FromFloat32s(values, dims...) }

// Int64s is a tensor of int64 values, such as token ids.
func Int64s(values []int64, dims ...int64) Tensor { return runtime.FromInt64s(values, dims...) }

// SessionOptions say what a graph is fed, and how it runs.
type SessionOptions struct {
	// Feeds are values of inputs by name. Parameters that are not fed come from the
	// files that the graph names, optimizer state begins with zeros, and what is left
	// is random by Seed.
	Feeds map[string]Tensor
	Seed  uint64
	// LR is the learning rate of a graph with an optimizer.
	LR       float64
	Settings Settings
}

// A Session runs steps of a graph. It is for one goroutine at a time.
type Session struct {
	session *runtime.Session
	reads   []string // files that its graph is read from
	closed  bool
	loss    string
}

// NewSession makes a session of a graph. It is closed before the graph and the
// runtime.
func (r *Runtime) NewSession(g *Graph, o SessionOptions) (*Session, error) {
	if err := o.Settings.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), err)
	}
	if math.IsNaN(o.LR) || math.IsInf(o.LR, 0) {
		return nil, fmt.Errorf("%s: SessionOptions.LR is %v: want a finite number", g.Path(), o.LR)
	}
	if err := g.read(); err != nil {
		return nil, err
	}
	defer g.reading.Unlock()
	m, err := g.source.Typed(g.dims)
	if err != nil {
		return nil, err
	}
	if err := g.unfed(o.Feeds); err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), err)
	}
	options := runtime.Options{
		Level: o.Settings.Level, Threads: o.Settings.threads(), Provider: ort.CPU, Dims: g.dims,
		Feed: o.Feeds, Seed: o.Seed, LR: o.LR,
	}
	s, err := r.session(g, m, options)
	if err != nil {
		return nil, err
	}
	return &Session{session: s, reads: g.source.Files(), loss: s.Roles.Loss}, nil
}

// session opens a graph, of which m is a typed copy, with the roles that are found in it.
func (r *Runtime) session(g *Graph, m *onnx.Model, o runtime.Options) (*runtime.Session, error) {
	if roles, found := pipeline.FoundRoles(m, nil); found != nil {
		o.Roles = &roles
	}
	executed, err := g.source.Executed()
	if err != nil {
		return nil, err
	}
	s, err := r.engine.OpenLoaded(executed, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", g.Path(), err)
	}
	return s, nil
}

// unfed names a free dimension to which neither Open nor a feed gives a number.
func (g *Graph) unfed(feeds map[string]Tensor) error {
	free := g.FreeDims()
	for _, v := range g.source.Model.Graph.Inputs {
		if _, ok := feeds[v.Name]; !ok {
			continue
		}
		for _, d := range v.Type.Shape {
			free = slices.DeleteFunc(free, func(name string) bool { return slices.Contains(d.Symbols(), name) })
		}
	}
	if len(free) > 0 {
		return &unfedError{FreeDimsError{Names: free}}
	}
	return nil
}

// An unfedError is a FreeDimsError of a session, which feeds tell sizes too.
type unfedError struct{ dims FreeDimsError }

func (e *unfedError) Error() string {
	return fmt.Sprintf("dimension %q has no number: give Open one, or feed an input that has it", e.dims.Names[0])
}

func (e *unfedError) Unwrap() error { return &e.dims }

// Close releases the session.
func (s *Session) Close() error {
	s.closed = true
	return s.session.Close()
}

// A Step is what one run of a graph gave and took.
type Step struct {
	// Loss is the graph's loss, 0 where it has none.
	Loss    float64
	Seconds float64
	// LivePeak is the most that was allocated at one moment, in bytes, measured.
	LivePeak int64
	// Outputs are values by name, valid until the next step.
	Outputs map[string]Tensor
}

// Step runs one step. Next values of parameters and state are in place for the one
// after it. Where the context ends first, the step ends early; of a graph with an
// optimizer, some values are those after the step then, and the session runs and saves no more.
func (s *Session) Step(ctx context.Context) (*Step, error) {
	if s.closed {
		return nil, errors.New("the session is closed: no step can run")
	}
	r, err := s.session.Step(ctx)
	if err != nil {
		return nil, err
	}
	step := &Step{Seconds: r.Seconds, LivePeak: r.LivePeakBytes, Outputs: map[string]Tensor{}}
	for _, o := range r.Outputs {
		if o.Err != nil {
			continue // absent, or no tensor
		}
		step.Outputs[o.Name] = o.Tensor
		if o.Name == s.loss {
			step.Loss, _ = o.Scalar()
		}
	}
	return step, nil
}

// Save writes the parameters and the optimizer state as they are now, into a
// safetensors file. The error says so where the graph updates nothing.
func (s *Session) Save(path string) error {
	if s.closed {
		return errors.New("the session is closed: its values are gone")
	}
	if err := canWrite(s.reads, path); err != nil {
		return err
	}
	return pipeline.SaveState(s.session, path)
}
