package runtime

// One step: set what changes from step to step, bind outputs again, run,
// measure, and make next values the inputs'.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/runtime/ort"
)

// An Output is an output of the last step. Its data is ONNX Runtime's memory,
// valid until the session's next step or Close; nil for a next value that was
// written over its input on a device, which Session.Last copies from there.
type Output struct {
	Name string
	Tensor
	// Err says why the value cannot be read: a sequence, strings, absent.
	Err error

	value *ort.Value
	lent  bool // the value is an input's
}

// Copy is the output with data of its own, which outlast the step, or the output itself
// where its memory is an input's, which does until the next step.
func (o Output) Copy() Output {
	if !o.lent {
		o.Data = bytes.Clone(o.Data)
	}
	o.value = nil
	return o
}

// A Step is what one run gave and cost.
type Step struct {
	Seconds float64
	Outputs []Output
	// LivePeakBytes is the maximum of what was allocated since the start of
	// the step and not yet released.
	LivePeakBytes int64
	// AstrayBytes are those of blocks that were not where they should have been, or
	// were not known; see Place.
	AstrayBytes int64
	// ReservedBytes is what the session's allocator had from the system for the step.
	ReservedBytes int64
	// Trace lists the allocations where it was asked for.
	Trace []ort.Event
	// LossScale is the scale of this step, 0 where the graph has none; Skipped
	// says that a gradient was not finite and the update left out.
	LossScale float64
	Skipped   bool
	// Device is what the step asked of the device, nil unless it was rehearsed;
	// then there are no Outputs, and Seconds is 0.
	Device *DeviceCost
}

// Output returns an output by name.
func (s *Step) Output(name string) (Output, bool) {
	for _, o := range s.Outputs {
		if o.Name == name {
			return o, true
		}
	}
	return Output{}, false
}

// Step runs the model once. When ctx is done first, the run ends before its next node;
// of a graph that updates, no other step runs then, see Whole.
func (s *Session) Step(ctx context.Context) (*Step, error) {
	if s.ort == nil || s.binding == nil {
		return nil, ort.ErrClosed
	}
	if err := s.Whole(); err != nil {
		return nil, err
	}
	s.releaseOutputs()
	if err := ctx.Err(); err != nil { // nothing ran: the next step has this one's number
		return nil, fmt.Errorf("step %d: %w", s.steps+1, err)
	}
	s.steps++
	asked := s.asked()
	step, err := s.step(ctx)
	if err != nil {
		err = s.refused(err, asked)
		s.steps-- // unless it is torn, the next one runs on the same values
		return nil, err
	}
	if s.rehearsed() {
		step.Device, step.Outputs, step.Seconds = s.deviceCost(asked), nil, 0
	}
	return step, nil
}

// Whole is an error once a step of a graph that updates has ended early: updates are written
// over parameters and state as they are made, so these are of two steps then.
func (s *Session) Whole() error {
	if s.torn == 0 {
		return nil
	}
	return fmt.Errorf("step %d ended early, so some parameters and state are those before it and some those after it: make a new session", s.torn)
}

func (s *Session) step(ctx context.Context) (*Step, error) {
	if err := s.beforeStep(); err != nil {
		return nil, err
	}
	counter := s.ort.DeviceCounter()
	counter.Mark(true) // also for MeasureArena
	left := s.within(counter)
	defer s.dropSums() // of a step that fails
	start := time.Now()
	if err := s.run(ctx); err != nil {
		if slices.ContainsFunc(s.inputs, func(in *input) bool { return in.inPlace }) {
			s.torn = s.steps
		}
		if st := counter.State(); st.Refused > 0 {
			err = s.outOfMemory(err, st, left)
		} else if cause := s.outside(err); cause != nil && ctx.Err() == nil {
			err = cause
		}
		return nil, fmt.Errorf("step %d: %w", s.steps, err)
	}
	step := &Step{Seconds: time.Since(start).Seconds()}
	state := counter.State()
	step.LivePeakBytes, step.AstrayBytes = state.Peak-state.Base, state.Astray
	step.ReservedBytes = state.Reserved - state.Base
	if s.options.Trace {
		var err error
		if step.Trace, err = counter.Events(); err != nil {
			return nil, err
		}
	}
	if !s.placed {
		if err := s.placeAsMeasured(counter, step); err != nil {
			return nil, err
		}
	}
	if err := s.afterStep(step); err != nil {
		if len(s.Updated()) > 0 {
			s.torn = s.steps
		}
		return nil, fmt.Errorf("step %d: %w", s.steps, err)
	}
	if !s.rehearsed() {
		s.rescale(step)
	}
	s.memory.LivePeakBytes = max(s.memory.LivePeakBytes, step.LivePeakBytes)
	s.memory.AstrayBytes = max(s.memory.AstrayBytes, step.AstrayBytes)
	s.memory.ReservedBytes = max(s.memory.ReservedBytes, s.allocated+step.ReservedBytes)
	return step, nil
}

// run runs the step, whose first requests are those for what it sums up.
func (s *Session) run(ctx context.Context) error {
	if err := s.takeSums(s.ort); err != nil {
		return err
	}
	if s.bound == nil {
		if err := s.bindStep(); err != nil {
			return err
		}
	}
	if err := s.bindLent(); err != nil {
		return err
	}
	return s.open.named(s.ort.Run(ctx, s.binding, ""))
}

// lookAgain is how long what the system says of its memory is believed: asking takes
// a tenth of a millisecond, which short steps would notice.
const lookAgain = 100 * time.Millisecond

// within keeps the step within the memory that is left, and returns how much that
// is: what is available besides the mapped pages that the update in place makes
// the process's own in the first step, and what is kept for reuse.
func (s *Session) within(counter *ort.Counter) int64 {
	pending := int64(0)
	for _, in := range s.inputs {
		if (in.from == fromFile || in.from == fromOwn) && in.inPlace && s.steps == s.began+1 {
			pending += in.value.ByteSize()
		}
	}
	if now := time.Now(); s.steps <= s.began+2 || now.Sub(s.looked) >= lookAgain {
		s.looked = now
		if s.left = Available(pending); s.left != math.MaxInt64 {
			s.left += ort.Kept()
		}
	}
	left := s.left
	if limit := s.options.MemoryLimit; limit > 0 {
		left = min(left, max(1, limit-s.beside()))
	}
	if left == math.MaxInt64 || s.Provider != ort.CPU {
		counter.Limit(0)
		return left
	}
	counter.Limit(counter.State().Live + max(1, left))
	return left
}

// beside is what there is beside a step, in bytes.
func (s *Session) beside() int64 {
	return s.memory.ParameterBytes + s.memory.StateBytes + s.memory.FeedBytes + s.memory.SessionBytes
}

// limited is the error of a session that alone exceeds its limit, nil for none.
func (s *Session) limited() error {
	if limit := s.options.MemoryLimit; limit > 0 && s.Provider == ort.CPU && s.beside() >= limit {
		return &MemoryError{What: "the session", Need: s.beside(), Available: limit, Limit: limit, Beside: s.beside()}
	}
	return nil
}

// outOfMemory is the error of a run whose request was refused.
func (s *Session) outOfMemory(err error, st ort.CounterState, left int64) error {
	e := &MemoryError{What: "it", Need: st.Refused, Available: left}
	if limit := s.options.MemoryLimit; limit > 0 && left <= limit-s.beside() {
		e.What, e.Limit, e.Beside, e.Asked = "a node", limit, s.beside(), st.Asked
		if m := failed.FindStringSubmatch(err.Error()); m != nil {
			e.What = m[1]
		}
	}
	return e
}

// beforeStep sets the step's scalars and data, and lets go of the outputs: one that is left
// bound would be written again.
func (s *Session) beforeStep() error {
	for _, in := range s.inputs {
		data, stepped := s.options.Data[in.info.Name]
		switch {
		case stepped && s.steps > s.began+1:
			if err := s.set(in, data.at((s.steps-1-s.began)%int(data.Shape[0])).Data); err != nil {
				return err
			}
		case in.from == fromScalar && (s.steps > 1 || s.rated):
			var scalar [8]byte
			s.options.setScalar(in.info.Name, scalar[:], s.number())
			if err := s.set(in, scalar[:in.value.ByteSize()]); err != nil {
				return err
			}
		}
	}
	return s.unbind()
}

// unbind has the binding let go of the last step's outputs. What steps sum up is another
// value in each, so then they are bound anew.
func (s *Session) unbind() error {
	if s.bound != nil && len(s.sums) == 0 {
		return s.binding.Rebind()
	}
	s.binding.ClearOutputs()
	s.bound = nil
	return nil
}

// bindStep binds the outputs of a step.
func (s *Session) bindStep() error {
	if err := s.bindOutputs(s.binding, func(in *input) (*ort.Value, error) {
		if in.inPlace {
			return in.value, nil
		}
		return nil, nil
	}); err != nil {
		return err
	}
	s.bound = make([]target, len(s.ort.Outputs))
	for i, o := range s.ort.Outputs {
		s.bound[i] = s.next[o.Name]
	}
	return nil
}

// afterStep takes the outputs over, counts them, and copies the next values
// that could not be written in place.
func (s *Session) afterStep(step *Step) error {
	bound, err := s.binding.Allocated()
	if err != nil {
		return err
	}
	outputs := make([]Output, len(bound))
	s.last = outputs
	s.memory.OutputBytes = 0
	for i, b := range bound {
		o := &outputs[i]
		*o = Output{Name: b.Name, value: b.Value, Err: b.Err}
		switch to := s.bound[i]; {
		case to.in != nil && to.in.inPlace:
			o.value, o.lent = to.in.value, true
			o.Tensor = tensorOf(o.value) // on a device it stays there: see Last
		case to.sum != nil && to.aside(b.Name):
			o.value, o.lent = to.sum.value, true
		case to.sum != nil:
			o.value = to.sum.value
		}
	}
	for _, sum := range s.sums {
		sum.value = nil // it is the output's now
	}
	for i := range outputs { // once all are taken over, so that an error leaves none
		if o := &outputs[i]; o.Err == nil && !o.lent {
			s.memory.OutputBytes += o.value.ByteSize()
			if err := s.read(o); err != nil {
				return err
			}
		}
	}
	if err := s.feedBack(outputs); err != nil {
		return err
	}
	whole := outputs[:0]
	for i, o := range outputs {
		if !s.bound[i].aside(o.Name) {
			whole = append(whole, o)
		}
	}
	s.last, step.Outputs = whole, whole
	return nil
}

// read makes the output's bytes readable on the host.
func (s *Session) read(o *Output) error {
	if !o.value.OnHost() {
		host, err := s.engine.Env.NewTensor(o.value.Type, o.value.Shape)
		if err != nil {
			return err
		}
		err = s.copier.copy(s, host, o.value)
		if !o.lent {
			o.value.Close()
		}
		o.value, o.lent = host, false
		if err != nil {
			return err
		}
	}
	o.Tensor = tensorOf(o.value)
	return nil
}

// feedBack copies next values that are not in place already.
func (s *Session) feedBack(outputs []Output) error {
	for i := range outputs {
		in, o := s.bound[i].in, &outputs[i]
		if in == nil || in.inPlace {
			continue
		}
		if o.Err != nil {
			return fmt.Errorf("output %q: %w", o.Name, o.Err)
		}
		if err := s.set(in, o.Data); err != nil {
			return fmt.Errorf("output %q: %w", o.Name, err)
		}
	}
	return nil
}

// set writes an input's value.
func (s *Session) set(in *input, data []byte) error {
	if int64(len(data)) != in.value.ByteSize() {
		return &FeedError{in.info.Name, fmt.Sprintf("%d bytes for a value of %d", len(data), in.value.ByteSize())}
	}
	if in.value.OnHost() {
		copy(in.value.Bytes(), data)
		return nil
	}
	host, err := s.engine.Env.TensorOver(data, in.value.Type, in.value.Shape)
	if err != nil {
		return err
	}
	return errors.Join(s.copier.copy(s, in.value, host), host.Close())
}

// input is the input of a name, or a FeedError.
func (s *Session) input(name string) (*input, error) {
	if in := s.byName[name]; in != nil {
		return in, nil
	}
	return nil, &FeedError{name, "the model has no input of that name"}
}

// tensorOf is a value on the host as a tensor in the same memory.
func tensorOf(v *ort.Value) Tensor { return Tensor{onnxType(v.Type), v.Shape, v.Bytes()} }

// Input returns a copy of an input's current value: a parameter after its
// updates. ok is false for an unknown name.
func (s *Session) Input(name string) (t Tensor, ok bool, err error) {
	in := s.byName[name]
	if in == nil {
		return Tensor{}, false, nil
	}
	host, err := s.engine.Env.NewTensor(in.value.Type, in.value.Shape)
	if err != nil {
		return Tensor{}, true, err
	}
	defer host.Close()
	if in.value.OnHost() {
		copy(host.Bytes(), in.value.Bytes())
	} else if err := s.copier.copy(s, host, in.value); err != nil {
		return Tensor{}, true, err
	}
	t = tensorOf(host)
	t.Data = bytes.Clone(t.Data)
	return t, true, nil
}

// SetInput changes an input's value for the steps to come; type and shape stay.
func (s *Session) SetInput(name string, t Tensor) error {
	in, err := s.input(name)
	if err != nil {
		return err
	}
	if ortType(t.Type) != in.value.Type {
		return &FeedError{name, fmt.Sprintf("feed is %s, want %s", t.Type, in.value.Type)}
	}
	if !slices.Equal(t.Shape, in.value.Shape) {
		return &FeedError{name, fmt.Sprintf("feed has shape %v, want %v", t.Shape, in.value.Shape)}
	}
	if in.borrowed {
		own, err := s.engine.Env.NewTensor(in.value.Type, in.value.Shape)
		if err != nil {
			return &FeedError{name, err.Error()}
		}
		if err := s.binding.BindInput(name, own); err != nil {
			return errors.Join(err, own.Close())
		}
		if err := in.value.Close(); err != nil {
			return errors.Join(err, own.Close())
		}
		in.value, in.borrowed = own, false
	}
	return s.set(in, t.Data)
}

// SetBytes is SetInput with the bytes of a value of the input's type and shape.
func (s *Session) SetBytes(name string, data []byte) error {
	in, err := s.input(name)
	if err != nil {
		return err
	}
	if int64(len(data)) != in.value.ByteSize() {
		return &FeedError{name, fmt.Sprintf("%d bytes, want %d", len(data), in.value.ByteSize())}
	}
	return s.SetInput(name, Tensor{onnxType(in.value.Type), in.value.Shape, data})
}

// Metadata returns an entry of the graph's metadata.
func (s *Session) Metadata(key string) (string, bool) { return s.Model.Metadata(key) }

// Updated lists the inputs that have a next value: trained parameters, optimizer state
// and running statistics.
func (s *Session) Updated() []string {
	var names []string
	for _, in := range s.inputs {
		if in.next != "" {
			names = append(names, in.info.Name)
		}
	}
	return names
}

// Trained lists the parameters among them that an optimizer updates.
func (s *Session) Trained() []string {
	var names []string
	for _, in := range s.inputs {
		if in.next != "" && in.category == parameterInput && !slices.Contains(s.Roles.Buffers, in.info.Name) {
			names = append(names, in.info.Name)
		}
	}
	return names
}

// InPlace says whether an input's next value is written over it.
func (s *Session) InPlace(name string) bool { return s.byName[name] != nil && s.byName[name].inPlace }

// Outputs says how the session's next values leave a step.
func (s *Session) Outputs() step.Outputs { return s.way }

// Release gives the last step's outputs back before the next step does.
func (s *Session) Release() {
	s.releaseOutputs()
	if s.binding != nil {
		_ = s.unbind() // it holds them too; a next step fails by what fails here
	}
}

func (s *Session) releaseOutputs() {
	for _, o := range s.last {
		if !o.lent {
			o.value.Close()
		}
	}
	s.last = nil
}
