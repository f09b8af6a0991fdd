package pipeline

import (
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/loss"
)

// WithLoss writes the model with a loss to out, beside the data that it refers to; see
// loss.Add. After, where it is not nil, sees the model before it is written.
func (s *Source) WithLoss(out string, o loss.Options, after func(pass string, m *onnx.Model) error) (*loss.Result, error) {
	m, err := s.copy()
	if err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	r, err := loss.Add(m, o)
	if err != nil {
		return nil, err
	}
	if after != nil {
		if err := after("loss", m); err != nil {
			return nil, err
		}
	}
	if err := SetRequires(m); err != nil {
		return nil, err
	}
	if err := Rebase(m, s.Path, out); err != nil {
		return nil, err
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	return r, m.Save(out)
}
