package pipeline

// A graph of updates divided among ranks: who updates what, and what each runs.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// A Shard is one rank's part of the updates.
type Shard struct {
	// Update updates what the rank owns; Squares makes the squares of its gradients, nil
	// where no norm of all is asked for.
	Update, Squares *onnx.Model
	// Params are all that are trained, Sums the sums of their gradients, and Owner their
	// ranks, in one order.
	Params, Sums []string
	Owner        []int
	// Rows are the owners of the squares that the norm is made of, in their order.
	Rows []int
	// Values are all that updates change, in the order of the whole graph's inputs.
	Values []OwnedValue
}

// An OwnedValue is a parameter or a piece of state. Owner is -1 where every rank has it.
type OwnedValue struct {
	Name  string
	Owner int
	onnx.Type
}

// ShardOf makes a rank's part of a graph of updates, for a graph that sums gradients. Owner
// says who updates which parameter; nil: they are divided evenly.
func ShardOf(sums, updates *onnx.Model, owner map[string]int, rank, size int) (*Shard, error) {
	s := &Shard{}
	of, err := s.divide(sums, updates, owner, size)
	if err != nil {
		return nil, err
	}
	own := func(param string) bool { return of[param] == rank }
	if s.Update, err = updates.Clone(); err != nil {
		return nil, err
	}
	if err := optim.OwnUpdates(s.Update, own); err != nil {
		return nil, err
	}
	list := optim.AllSquares(updates)
	if list == nil {
		return s, nil
	}
	for _, param := range list {
		s.Rows = append(s.Rows, of[param])
	}
	if s.Squares, err = updates.Clone(); err != nil {
		return nil, err
	}
	return s, optim.OwnSquaresOnly(s.Squares, own)
}

// divide gives each parameter to a rank, and returns to which.
func (s *Shard) divide(sums, updates *onnx.Model, owner map[string]int, size int) (map[string]int, error) {
	summed, _, err := step.RolesOf(sums, nil)
	if err != nil {
		return nil, err
	}
	updated, _, err := step.RolesOf(updates, nil)
	if err != nil {
		return nil, err
	}
	sumOf := map[string]string{} // by its next value
	for in, next := range summed.New {
		sumOf[next] = in
	}
	var elements []int64
	for _, v := range updates.Graph.Inputs {
		next := updates.Graph.Value(updated.New[v.Name])
		if next == nil || optim.UpdateOf(next) != v.Name {
			continue
		}
		bytes, ok := v.Type.Bytes()
		sum := sumOf[summed.Grad[v.Name]]
		if !ok || v.Type.DType != onnx.Float32 || sum == "" {
			return nil, fmt.Errorf("%q: ranks divide float32 parameters of fixed shape whose gradients are summed", v.Name)
		}
		s.Params, s.Sums = append(s.Params, v.Name), append(s.Sums, sum)
		elements = append(elements, bytes/4)
	}
	if len(s.Params) < size && len(owner) > 0 {
		return nil, fmt.Errorf("%d stages: there are %d parameters to train: use fewer stages", size, len(s.Params))
	}
	if len(s.Params) < size {
		return nil, fmt.Errorf("%d ranks: there are %d parameters to divide: use fewer ranks, or --sync step", size, len(s.Params))
	}
	s.Owner = ranks.Owners(elements, size)
	of := map[string]int{}
	for i, param := range s.Params {
		if rank, ok := owner[param]; ok {
			s.Owner[i] = rank
		}
		of[param] = s.Owner[i]
	}
	for rank := range size {
		if !slices.Contains(s.Owner, rank) {
			return nil, fmt.Errorf("stage %d trains nothing: use fewer stages", rank)
		}
	}
	for _, v := range updates.Graph.Inputs {
		if next := updated.New[v.Name]; next != "" {
			o := OwnedValue{v.Name, -1, v.Type}
			if rank, ok := of[optim.UpdateOf(updates.Graph.Value(next))]; ok {
				o.Owner = rank
			}
			s.Values = append(s.Values, o)
		}
	}
	for _, name := range summed.Buffers {
		o := OwnedValue{name, -1, sums.Graph.Value(name).Type}
		if rank, ok := owner[name]; ok {
			o.Owner = rank
		}
		s.Values = append(s.Values, o)
	}
	return of, nil
}

// Held is what a rank holds for values of others, in bytes: squares, and on the first one,
// which writes states, the largest value.
func (s *Shard) Held(rank int) int64 {
	held := int64(len(s.Rows)) * 4
	if rank > 0 {
		return held
	}
	largest := int64(0)
	for _, v := range s.Values {
		if v.Owner > 0 {
			largest = max(largest, v.KnownBytes())
		}
	}
	return held + largest
}

// SyncBytes is what a rank sends each step, with the elements of each parameter.
func (s *Shard) SyncBytes(elements []int64, rank, size int) int64 {
	return ranks.OwnedBytes(elements, s.Owner, rank, size) + ranks.ShareBytes(ranks.WordBytes, size) + s.SquareBytes(rank, size)
}

// SquareBytes is what a rank sends of the squares of its gradients.
func (s *Shard) SquareBytes(rank, size int) int64 {
	own := int64(0)
	for _, r := range s.Rows {
		if r == rank {
			own++
		}
	}
	return 4 * own * int64(size-1)
}

// kind tells apart ranks that hold the same: the sizes of what they own.
func (s *Shard) kind(rank int) string {
	var own []string
	for _, v := range s.Values {
		if v.Owner == rank {
			own = append(own, v.Type.String())
		}
	}
	slices.Sort(own)
	return fmt.Sprint(own)
}
