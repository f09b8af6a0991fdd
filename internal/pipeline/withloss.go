package pipeline

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/loss"
	"github.com/onnx-remat/remat/rewrite/lower"
)

// Models that are made of a source's and not planned, beside the data that they refer to.

// WithLoss writes the model with a loss to out; see loss.Add. After sees
// the model before it is written.
func (s *Source) WithLoss(out string, o loss.Options, after onnx.AfterPass) (r *loss.Result, err error) {
	err = s.write(out, "loss", after, func(m *onnx.Model) (err error) {
		r, err = loss.Add(m, o)
		return err
	})
	return r, err
}

// Lowered writes the model without ONNX Runtime's private gradient operators to out; see
// lower.Model. The version is left out of it: that would say that the graph is in the form
// which no optimizer changes.
func (s *Source) Lowered(out string, dims map[string]int64, after onnx.AfterPass) (r *lower.Report, err error) {
	err = s.write(out, "lower", after, func(m *onnx.Model) (err error) {
		if r, err = lower.Model(m); err != nil {
			return err
		}
		m.SetMetadata(SourceKey, s.Hash())
		_, err = infer.Model(m, infer.Options{Dims: dims})
		return err
	})
	return r, err
}

// write writes to out what a pass makes of the model.
func (s *Source) write(out, pass string, after onnx.AfterPass, change func(*onnx.Model) error) error {
	m, err := s.copy()
	if err != nil {
		return err
	}
	if err = m.Check(); err == nil {
		err = change(m)
	}
	if err == nil {
		err = after.See(pass, m)
	}
	if err == nil {
		err = SetRequires(m)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	if err := Rebase(m, s.Path, out); err != nil {
		return err
	}
	if err := m.Check(); err != nil {
		return fmt.Errorf("%s: %w", s.Path, err)
	}
	return m.Save(out)
}
