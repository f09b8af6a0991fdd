package runtime

// Fed numbers below zero where a value is indexed: ONNX Runtime counts them from its end,
// so that a label of -1 is the last class, which a loss of PyTorch refuses.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// FromEnd is a fed number that is counted from the end of what it indexes.
type FromEnd struct {
	Input  string
	Number int64
	Extent int64  // of what it indexes
	Count  int    // how many of the input's numbers are below zero so
	Feed   string // what to feed instead
}

// outside says which fed number lies outside what it indexes, as a kernel refuses without its
// name; nil if none.
func (s *Session) outside() (cause error) {
	_ = s.eachIndex(func(input string, x indexed, n int64) { // the run's own error stands where a feed can't be read
		if cause == nil && (n >= x.extent || n < -x.extent) {
			cause = &FeedError{input, fmt.Sprintf("%d lies outside of what it indexes: %s", n, x.feed())}
		}
	})
	return cause
}

// feed says what to feed.
func (x indexed) feed() string {
	text := fmt.Sprintf("feed 0 to %d", x.extent-1)
	if len(x.replaced) > 0 {
		text += fmt.Sprintf(", or %d for what is left out", x.replaced[0])
	}
	return text
}

// FromEnd lists the inputs of which a number that was fed, as the next step reads it, is counted
// from the end.
func (s *Session) FromEnd() (list []FromEnd, err error) {
	err = s.eachIndex(func(input string, x indexed, n int64) {
		if n >= 0 || n < -x.extent {
			return
		}
		if len(list) == 0 || list[len(list)-1].Input != input {
			list = append(list, FromEnd{Input: input, Number: n, Extent: x.extent, Feed: x.feed()})
		}
		list[len(list)-1].Count++
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// eachIndex calls f for each number that the next step indexes something by, as it is fed.
func (s *Session) eachIndex(f func(input string, x indexed, n int64)) error {
	for _, in := range s.inputs {
		x := in.indexes
		if x.extent == 0 {
			continue
		}
		t, _, err := s.Input(in.info.Name)
		if err != nil {
			return err
		}
		for i := int64(0); i < int64(len(t.Data)); i += t.Type.Size() {
			if n := t.Type.Int(t.Data[i:]); !slices.Contains(x.replaced, n) {
				f(in.info.Name, x, n)
			}
		}
	}
	return nil
}

// indexed is what elements of an input index as they are.
type indexed struct {
	extent   int64   // the least, 0 where there is none
	replaced []int64 // numbers in whose place others are read, or that a loss ignores
}

// indexedBy is what elements of an input of integers index.
func indexedBy(m *onnx.Model, v *onnx.Value) (x indexed) {
	if !v.Type.DType.IsInt() {
		return x
	}
	indexes := false
	eachUse(v, func(v *onnx.Value, u onnx.Use) bool {
		if u.Index == onnx.Captured {
			return false
		}
		if _, ok := boundOf(u); ok {
			indexes = true
			if u.Node.Has("ignore_index") {
				x.replaced = append(x.replaced, u.Node.Int("ignore_index", 0))
			}
		}
		but, kept := keepsBut(v, u)
		x.replaced = append(x.replaced, but...)
		return kept
	})
	if indexes {
		x.extent = FeedLimit(m, v)
	}
	return x
}

// keepsBut reports a use that hands on numbers as they are, but those that a Where replaces,
// as in Where(Equal(v, -100), 0, v).
func keepsBut(v *onnx.Value, u onnx.Use) (but []int64, kept bool) {
	n := u.Node
	if !n.Is("Where") {
		return nil, n.Is("Cast") && onnx.DType(n.Int("to", 0)).IsInt() || n.Is("Concat") || u.Index == 0 && (traits.Moves(n) || n.Is("Pad"))
	}
	cond := n.In(0).Producer
	if cond != nil && cond.Is("Not") {
		cond = cond.In(0).Producer
	}
	if u.Index == 0 || cond == nil || !cond.Is("Equal") {
		return nil, false
	}
	for i := range 2 {
		if number, ok := cond.In(1 - i).Number(); ok && cond.In(i) == v {
			return []int64{int64(number)}, true
		}
	}
	return nil, false
}
