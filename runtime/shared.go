package runtime

// Values that sessions of one engine share: inputs made from a seed that no step
// writes. Graphs with the same parameters that return gradients, compared with each
// other, hold them once; so do parameters in a file, which are mapped.
//
// A value lives as long as a session that took it.

import (
	"fmt"
	"sync"

	"github.com/onnx-remat/remat/models/weights"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A recipe says all that the bytes of a made value depend on.
type recipe struct {
	from  source
	name  string
	dtype ort.DType
	shape string
	seed  uint64
	init  weights.Init // of fromSeed
	limit int64        // of fromRandom: what integers lie below
}

type sharedValue struct {
	value *ort.Value
	users int
}

type sharedValues struct {
	mu   sync.Mutex
	made map[recipe]*sharedValue
}

// take returns the memory of the value, made by fill if no session has it.
func (s *sharedValues) take(env *ort.Environment, r recipe, shape []int64, fill func([]byte)) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.made[r]
	if v == nil {
		value, err := newTensor(env, r.dtype, shape)
		if err != nil {
			return nil, err
		}
		fill(value.Bytes())
		if v = (&sharedValue{value: value}); s.made == nil {
			s.made = map[recipe]*sharedValue{}
		}
		s.made[r] = v
	}
	v.users++
	return v.value.Bytes(), nil
}

// give says that one session is done with the value.
func (s *sharedValues) give(r recipe) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.made[r]
	if v.users--; v.users > 0 {
		return nil
	}
	delete(s.made, r)
	return v.value.Close()
}

// isShared reports an input whose value several sessions may have: made from a
// seed, on the host, and never written.
func (s *Session) isShared(in *input) bool {
	_, stepped := s.options.Data[in.info.Name]
	return (in.from == fromSeed || in.from == fromRandom) && in.next == "" && !stepped && s.Provider == ort.CPU
}

// share gives an input a value that other sessions may have too.
func (s *Session) share(in *input, t ort.DType, shape []int64, at Location, fill func([]byte)) error {
	r := recipe{from: in.from, name: in.info.Name, dtype: t, shape: fmt.Sprint(shape), seed: s.options.Seed}
	if in.from == fromSeed {
		r.init, r.seed = at.Init, at.Seed
	} else {
		r.limit = in.limit
	}
	data, err := s.engine.shared.take(s.engine.Env, r, shape, fill)
	if err != nil {
		return err
	}
	s.shared, in.borrowed = append(s.shared, r), true
	in.value, err = s.engine.Env.TensorOver(data, t, shape)
	return err
}
