package runtime

// What a training loop asks of a session beyond steps: to go on where another one
// stopped, a rate for each run, feeds for each run, and the memory of what is
// trained, as it lies, to be written into a file.

import (
	"errors"
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Progress is what a session has to know of the runs before its own, so that it
// goes on as if it had made them.
type Progress struct {
	// Runs of the graph so far, Skipped of them by an overflow, Good in a row since
	// the last one.
	Runs, Skipped, Good int
	// LossScale is that of the next run, 0 where the graph has none.
	LossScale float64
}

// Progress returns where the session stands.
func (s *Session) Progress() Progress {
	p := Progress{Runs: s.steps}
	if s.scaler != nil {
		p.Skipped, p.Good, p.LossScale = s.scaler.Skipped, s.scaler.Good, s.scaler.Scale
	}
	return p
}

// resume makes the session's next run the one after those of the options.
func (s *Session) resume() error {
	p := s.options.From
	if p == (Progress{}) {
		return nil
	}
	if (p.LossScale != 0) != (s.scaler != nil) {
		return errors.New("the runs before had a loss scale and these have none, or the other way round: another graph")
	}
	s.steps, s.began, s.rated = p.Runs, p.Runs, true
	if s.scaler != nil {
		s.scaler.Skipped, s.scaler.Good, s.scaler.Scale = p.Skipped, p.Good, p.LossScale
		s.options.LossScale = p.LossScale
	}
	return nil
}

// Settle makes the runs since a progress end as one: all of them overflowed, or runs, of
// this session and of those that it trains with, did not. So sessions that began alike go
// on with the same scale of the loss, whichever of them overflowed.
func (s *Session) Settle(from Progress, overflowed bool, runs int) {
	if s.scaler == nil {
		return
	}
	s.scaler.Skipped, s.scaler.Good, s.scaler.Scale = from.Skipped, from.Good, from.LossScale
	if overflowed {
		s.scaler.Update(true)
		s.scaler.Skipped = from.Skipped + s.steps - from.Runs
	}
	for ; !overflowed && runs > 0; runs-- {
		s.scaler.Update(false)
	}
	s.options.LossScale = s.scaler.Scale
}

// SetRate sets the learning rate of the runs to come.
func (s *Session) SetRate(lr float64) { s.options.LR, s.rated = lr, true }

// Feed sets inputs for the runs to come, by name; type and shape stay as they are.
// The values are copied. A name that is no input is an error.
func (s *Session) Feed(batch map[string]Tensor) error {
	for name, t := range batch {
		if err := s.SetInput(name, t); err != nil {
			return err
		}
	}
	return nil
}

// Feeds lists the inputs that are neither parameters, nor state, nor set by the
// session itself: those that a batch has to give.
func (s *Session) Feeds() []*onnx.Value {
	var list []*onnx.Value
	for _, in := range s.inputs {
		if in.category == feedInput && in.from != fromScalar && in.info.Init == nil {
			list = append(list, in.info)
		}
	}
	return list
}

// View calls f with an input's current value: its own memory on the host, which f
// must not keep or change, or a copy where it lies on a device.
func (s *Session) View(name string, f func(Tensor) error) error {
	in, err := s.input(name)
	if err != nil {
		return err
	}
	if in.value.OnHost() {
		return f(tensorOf(in.value))
	}
	host, err := newTensor(s.engine.Env, in.value.Type, in.value.Shape)
	if err != nil {
		return err
	}
	if err := s.copier.copy(s, host, in.value); err != nil {
		return errors.Join(err, host.Close())
	}
	return errors.Join(f(tensorOf(host)), host.Close())
}

// ShapeOf is the type and shape of an input's value.
func (s *Session) ShapeOf(name string) (onnx.DType, []int64, error) {
	in, err := s.input(name)
	if err != nil {
		return 0, nil, err
	}
	return onnxType(in.value.Type), in.value.Shape, nil
}

// lends is the session's parameter or state for another one's input, or that of the
// session that shares with this one in turn; nil where neither has it.
func (s *Session) lends(v *onnx.Value) *input {
	if s == nil {
		return nil
	}
	in := s.byName[v.Name]
	if in != nil && in.category != feedInput && v.Type.Known() && ortType(v.Type.DType) == in.value.Type &&
		fmt.Sprint(v.Type.Shape) == fmt.Sprint(in.info.Type.Shape) {
		return in
	}
	return s.options.Share.lends(v)
}

// Reserved is what the session's allocator has from the system at this moment: what is
// handed out, and what is kept for the next step, of all sessions. Parameters and
// feeds lie beside it.
func (s *Session) Reserved() int64 {
	if s.ort == nil {
		return 0
	}
	return s.ort.DeviceCounter().State().Live + ort.Kept()
}

// Edit calls f with an input's current value, which f may change: its own memory on the
// host, or a copy that is put back where it lies on a device.
func (s *Session) Edit(name string, f func(Tensor) error) error {
	in, err := s.input(name)
	if err != nil {
		return err
	}
	if in.value.OnHost() {
		return f(tensorOf(in.value))
	}
	return s.View(name, func(t Tensor) error {
		if err := f(t); err != nil {
			return err
		}
		return s.set(in, t.Data)
	})
}
