package train

// What is fed. A micro-batch is a function of its number, so that a run that goes on
// needs nothing but that number; and the next one is made while a step runs.

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// Batches give micro-batches by number, from 0 and over the whole training. At is
// pure, and is called from one goroutine at a time, which need not be the caller's.
type Batches interface {
	At(n int64) (map[string]runtime.Tensor, error)
}

// Bounded batches have an end: those before number Len are one pass over the data.
type Bounded interface {
	Batches
	Len() int64
}

// Identified batches tell when they are others: Identity stands for their content, order
// and sizes, without paths and times, and CheckIdentity says in an error what differs
// from one that was kept.
type Identified interface {
	Identity() string
	CheckIdentity(kept string) error
}

// Counted batches know how many tokens of a batch count for its loss.
type Counted interface {
	Tokens(batch map[string]runtime.Tensor) int64
}

// Ignored is the label that losses leave out, as PyTorch and its exporters have it.
const Ignored = -100

// Tokens is how many predictions a batch asks for: as the batches say, else the
// elements of the input named labels, or of the integer input with the most elements,
// without those that are Ignored; of a batch without integers it is the samples, the
// extent of the leading axis.
func Tokens(b Batches, batch map[string]runtime.Tensor) int64 {
	if c, ok := b.(Counted); ok {
		return c.Tokens(batch)
	}
	var of *runtime.Tensor
	samples := int64(1)
	for name, t := range batch {
		if len(t.Shape) > 0 {
			samples = max(samples, t.Shape[0])
		}
		if t.Type != onnx.Int64 && t.Type != onnx.Int32 || len(t.Shape) == 0 {
			continue
		}
		if name == "labels" {
			return counted(t)
		}
		if of == nil || len(t.Data)/int(t.Type.Size()) > len(of.Data)/int(of.Type.Size()) {
			of = &t
		}
	}
	if of == nil {
		return samples
	}
	return counted(*of)
}

// counted are the elements that are not Ignored.
func counted(t runtime.Tensor) (n int64) {
	size := int(t.Type.Size())
	for i := 0; i+size <= len(t.Data); i += size {
		if t.Type.Int(t.Data[i:]) != Ignored {
			n++
		}
	}
	return n
}

// A prepared is a batch that was made ahead.
type prepared struct {
	number int64
	values map[string]runtime.Tensor
	tokens int64
	err    error
}

// setOn gives a session the values that it takes.
func (p *prepared) setOn(s *runtime.Session) error {
	for _, in := range s.Feeds() {
		if v, ok := p.values[in.Name]; ok {
			if err := s.SetInput(in.Name, v); err != nil {
				return err
			}
		}
	}
	return nil
}

// ahead makes the batches from number on, each while the one before is used: two
// are there at any time. It ends with the context.
func ahead(ctx context.Context, b Batches, from int64) <-chan prepared {
	out := make(chan prepared)
	go func() {
		defer close(out)
		debug.SetPanicOnFault(true) // of this goroutine
		var first []string          // inputs of the first one
		for n := from; ; n++ {
			p := prepare(b, n)
			if p.err == nil && n == from {
				first = slices.Sorted(maps.Keys(p.values))
			} else if p.err == nil {
				p.err = p.like(first, from)
			}
			select {
			case out <- p:
			case <-ctx.Done():
				return
			}
			if p.err != nil {
				return
			}
		}
	}()
	return out
}

// like says which input a batch has values for and an earlier one has not, or the other
// way about: the session would go on with values of the batch before.
func (p *prepared) like(names []string, of int64) error {
	for _, name := range names {
		if _, ok := p.values[name]; !ok {
			return fmt.Errorf("batch %d has no values for input %q, which batch %d has", p.number, name, of)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(p.values)) {
		if !slices.Contains(names, name) {
			return fmt.Errorf("batch %d has values for input %q, which batch %d has not", p.number, name, of)
		}
	}
	return nil
}

func prepare(b Batches, n int64) (p prepared) {
	// A mapped file that somebody shortens meanwhile faults here: one line, not the
	// end of the program.
	defer func() {
		if r := recover(); r != nil {
			p.err = fmt.Errorf("batch %d: the data cannot be read any more: was its file changed? (%v)", n, r)
		}
	}()
	p.number = n
	if p.values, p.err = b.At(n); p.err == nil {
		p.tokens = Tokens(b, p.values)
	}
	return p
}
