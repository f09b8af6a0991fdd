package train

// Updates that are divided among ranks: each parameter has an owner, which alone has its
// optimizer state and updates it.
//
//	sums of gradients ─▶ each to its owner, which adds those of all ranks up
//	squares of the own ones ─▶ exchanged, where a norm of all is asked for
//	updates of the own ─▶ parameters to all ranks
//
// The bits are those of ranks that all update everything. A sum that a rank does not own
// begins at -0, to which adding x gives x for every x, so that its sign of zero is that of
// the gradients alone; the owner's begins at what its update left.
//
// The first rank writes the state, in which all values are: it receives those of others
// one by one. So a state does not tell how updates were divided, or that they were.

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// Owned says how updates are divided, and has this rank's part.
type Owned struct {
	// Squares makes the squares of the own gradients, as SquaresOutput, for the input
	// SquaresInput of the session that updates; nil where nobody asks for a norm.
	Squares                     *runtime.Session
	SquaresInput, SquaresOutput string
	// Rows are the owners of all squares, in the order in which they are fed.
	Rows []int
	// Params are trained, Sums are those of their gradients, Owner are their ranks.
	Params, Sums []string
	Owner        []int
	// Values are all that updates change, as states have them.
	Values []OwnedValue

	rounds  [][]int
	squares []float32
	foreign []byte // a value of another rank
	group   *ranks.Group
	job     *Job
}

// An OwnedValue is one that the updates of a rank change; Owner is -1 where all do.
type OwnedValue struct {
	Name  string
	Owner int
	DType onnx.DType
	Shape []int64
}

// bytes is the size of the value.
func (v *OwnedValue) bytes() int64 {
	n, _ := onnx.TensorOf(v.DType, onnx.StaticShape(v.Shape...)).Bytes()
	return n
}

// begin makes sums of others those of no gradient.
func (s *Owned) begin(j *Job) error {
	s.group, s.job = j.Ranks.Group, j
	s.squares = make([]float32, len(s.Rows))
	if j.Ranks.pipelined() {
		return nil // a stage has no sums but its own
	}
	elements := make([]int64, len(s.Sums))
	for i, name := range s.Sums {
		_, shape, err := j.Session.ShapeOf(name)
		if err != nil {
			return err
		}
		elements[i], _ = onnx.Elements(shape)
	}
	s.rounds = ranks.Rounds(elements, s.Owner, s.group.Size())
	return s.forget(j.Session)
}

// forget sets the sums that others own to -0.
func (s *Owned) forget(session *runtime.Session) error {
	zero := float32(math.Copysign(0, -1))
	for i, name := range s.Sums {
		if s.Owner[i] == s.group.Rank() {
			continue
		}
		err := editFloats(session, name, func(values []float32) error {
			for k := range values {
				values[k] = zero
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// held is what the division holds beside sessions, in bytes.
func (s *Owned) held() int64 {
	if s == nil {
		return 0
	}
	return int64(len(s.squares))*4 + int64(len(s.foreign))
}

// editAll calls f with the memory of several inputs at once; "" stands for none.
func editAll(s *runtime.Session, names []string, f func([][]float32) error) error {
	if len(names) == 0 {
		return f(nil)
	}
	rest := func(first []float32) error {
		return editAll(s, names[1:], func(list [][]float32) error { return f(append([][]float32{first}, list...)) })
	}
	if names[0] == "" {
		return rest(nil)
	}
	return editFloats(s, names[0], rest)
}

// editFloats calls f with the memory of a float32 input.
func editFloats(s *runtime.Session, name string, f func([]float32) error) error {
	return s.Edit(name, func(t runtime.Tensor) error {
		values, err := ranks.Floats(t.Data)
		if err != nil {
			return err
		}
		return f(values)
	})
}

// clearFloats sets float32 inputs to zero.
func clearFloats(s *runtime.Session, names []string) error {
	for _, name := range names {
		if err := editFloats(s, name, func(values []float32) error { clear(values); return nil }); err != nil {
			return err
		}
	}
	return nil
}

// exchange calls f with the values of each round, by rank.
func (s *Owned) exchange(session *runtime.Session, names []string, f func([][]float32) error) error {
	for _, round := range s.rounds {
		list := make([]string, len(round))
		for rank, i := range round {
			if i >= 0 {
				list[rank] = names[i]
			}
		}
		if err := editAll(session, list, f); err != nil {
			return fmt.Errorf("rank %d of %d: %w", s.group.Rank(), s.group.Size(), err)
		}
	}
	return nil
}

// updateOwn updates what the rank owns, and exchanges the rest.
func (t *training) updateOwn(rec *Record) error {
	s := t.Ranks.Owned
	sum := func(chunks [][]float32) error { return s.group.Reduce(chunks, ranks.Sum) }
	if err := s.exchange(t.Session, s.Sums, sum); err != nil {
		return err
	}
	if err := t.exchangeSquares(rec); err != nil {
		return err
	}
	if err := t.update(rec); err != nil {
		return err
	}
	if err := s.exchange(t.Session, s.Params, s.group.Gather); err != nil {
		return err
	}
	return s.forget(t.Session)
}

// exchangeSquares gives the session that updates the squares of all gradients.
func (t *training) exchangeSquares(rec *Record) error {
	s := t.Ranks.Owned
	if len(s.Rows) == 0 {
		return nil
	}
	var own runtime.Output
	if s.Squares != nil {
		out, err := t.runSession(s.Squares, rec)
		if err != nil {
			return err
		}
		var ok bool
		if own, ok = out.Output(s.SquaresOutput); !ok || own.Err != nil {
			return fmt.Errorf("the squares of gradients: no output %q", s.SquaresOutput)
		}
	}
	chunks, at := make([][]float32, s.group.Size()), 0
	for rank := range chunks {
		n := len(slices.DeleteFunc(slices.Clone(s.Rows), func(r int) bool { return r != rank }))
		chunks[rank] = s.squares[at : at+n]
		at += n
	}
	if copy(ranks.Bytes(chunks[s.group.Rank()]), own.Data) != len(own.Data) {
		return fmt.Errorf("the squares of gradients: %d bytes", len(own.Data))
	}
	if err := s.group.Gather(chunks); err != nil {
		return err
	}
	var rows []byte // in the order of the whole graph
	for _, rank := range s.Rows {
		rows = binary.LittleEndian.AppendUint32(rows, math.Float32bits(chunks[rank][0]))
		chunks[rank] = chunks[rank][1:]
	}
	return t.Ranks.Update.SetInput(s.SquaresInput, runtime.Tensor{Type: onnx.Float32, Shape: []int64{int64(len(s.Rows))}, Data: rows})
}

// holder is what the job's states are written of.
func (s *Owned) holder(j *Job) Holder { return &sharedOut{j.Ranks.Update, s} }

// of is this rank's session that changes a value: that of the updates, or of a graph that
// moves running statistics.
func (s *Owned) of(name string) *runtime.Session {
	list := []*runtime.Session{s.job.Ranks.Update, s.job.Session}
	if p := s.job.Ranks.Pipeline; p != nil {
		list = append(list, p.Backward)
	}
	return moves(name, list...)
}

// sharedOut are the values of all ranks, as the first one sees them.
type sharedOut struct {
	*runtime.Session
	shard *Owned
}

func (h *sharedOut) Updated() []string { return ownedNames(h.shard.Values) }

func ownedNames(values []OwnedValue) []string {
	names := make([]string, len(values))
	for i, v := range values {
		names[i] = v.Name
	}
	return names
}

func (h *sharedOut) value(name string) *OwnedValue {
	i := slices.IndexFunc(h.shard.Values, func(v OwnedValue) bool { return v.Name == name })
	if i < 0 {
		return nil
	}
	return &h.shard.Values[i]
}

func (h *sharedOut) ShapeOf(name string) (onnx.DType, []int64, error) {
	if v := h.value(name); v != nil {
		return v.DType, v.Shape, nil
	}
	return h.Session.ShapeOf(name)
}

// View has a value of another rank sent, while that one is in give.
func (h *sharedOut) View(name string, f func(runtime.Tensor) error) error {
	s, v := h.shard, h.value(name)
	if v == nil || v.Owner <= 0 {
		return s.of(name).View(name, f)
	}
	if s.foreign == nil {
		s.foreign = make([]byte, s.largest())
	}
	t := runtime.Tensor{Type: v.DType, Shape: v.Shape, Data: s.foreign[:v.bytes()]}
	if err := s.group.Pass(t.Data, v.Owner, 0); err != nil {
		return fmt.Errorf("%q of rank %d: %w", name, v.Owner, err)
	}
	return f(t)
}

// largest is the size of the largest value that another rank than the first has.
func (s *Owned) largest() (n int64) {
	for _, v := range s.Values {
		if v.Owner > 0 {
			n = max(n, v.bytes())
		}
	}
	return n
}

// give sends the first rank what it writes of this one.
func (s *Owned) give() error {
	for _, v := range s.Values {
		if v.Owner != s.group.Rank() {
			continue
		}
		if err := s.of(v.Name).View(v.Name, func(t runtime.Tensor) error { return s.group.Pass(t.Data, v.Owner, 0) }); err != nil {
			return err
		}
	}
	return nil
}
