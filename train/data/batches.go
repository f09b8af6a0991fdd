package data

// Batches: the samples of a run in order, put together as the model reads them.

import (
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// A part is what one input gets. Its tensor is rows, one of each sample.
type part struct {
	name  string
	kind  onnx.DType
	shape []int64
	// put writes the row of a sample; nil: fixed holds the whole tensor, which is the
	// same in every batch.
	put   func(dst []byte, sample int64) error
	fixed []byte
	// empty writes the row of no sample; nil where there is no such row.
	empty func(dst []byte)
}

// Batches gives micro-batches by their number.
type Batches struct {
	parts   []part
	batch   int64 // rows of a part
	samples int64
	order   order
	// once: one pass over the samples, as for validation, where the last batch is
	// filled up with empty rows; otherwise epochs go on without end.
	once bool

	labels   labels
	compared []labels // all inputs of labels, also where there are several
	identity Identity

	slots [2]map[string]runtime.Tensor
	next  int
}

// labels says which elements of a batch count.
type labels struct {
	input   string
	kind    onnx.DType
	counted []bool // of the elements of a batch; nil: all
	ignored int64
	ignores bool
}

// newBatches makes the buffers of two batches.
func newBatches(b Batches) *Batches {
	for i := range b.slots {
		b.slots[i] = map[string]runtime.Tensor{}
		for _, p := range b.parts {
			n, _ := onnx.Elements(p.shape)
			t := runtime.Tensor{Type: p.kind, Shape: p.shape, Data: p.fixed}
			if p.put != nil {
				t.Data = make([]byte, n*p.kind.Size())
			}
			b.slots[i][p.name] = t
		}
	}
	return &b
}

// At returns micro-batch n of the run, from 0, the same for the same n. The tensors
// lie in one of two buffers in turn, so they keep until the second call after this
// one. One call at a time. The error names the file, and what is wrong with it.
func (b *Batches) At(n int64) (map[string]runtime.Tensor, error) {
	if n < 0 {
		return nil, fmt.Errorf("batch %d: there is none before 0", n)
	}
	if b.once {
		n %= b.Len()
	}
	out := b.slots[b.next]
	b.next = 1 - b.next
	for row := range b.batch {
		place := n*b.batch + row
		none := b.once && place >= b.samples
		sample := int64(0)
		if !none {
			sample = b.order.at(place)
		}
		for i := range b.parts {
			p := &b.parts[i]
			if p.put == nil {
				continue
			}
			data := out[p.name].Data
			size := int64(len(data)) / b.batch
			dst := data[row*size : (row+1)*size]
			if none {
				p.empty(dst)
			} else if err := p.put(dst, sample); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// Batch is the number of samples in a batch.
func (b *Batches) Batch() int64 { return b.batch }

// Samples is the number of samples in an epoch.
func (b *Batches) Samples() int64 { return b.samples }

// In is how many whole batches so many epochs have, so that no sample is read once
// more than that.
func (b *Batches) In(epochs int64) int64 {
	whole, rest := b.samples/b.batch, b.samples%b.batch
	return epochs*whole + epochs*rest/b.batch
}

// Len is the number of batches in one pass. Batches of training data go on after
// it; validation data begins again.
func (b *Batches) Len() int64 {
	if b.once && b.fills() {
		return (b.samples + b.batch - 1) / b.batch
	}
	return b.samples / b.batch
}

// fills reports that a batch can have rows of no sample, which the loss ignores.
func (b *Batches) fills() bool {
	return !slices.ContainsFunc(b.parts, func(p part) bool { return p.put != nil && p.empty == nil })
}

// Left is the number of samples that one pass leaves out.
func (b *Batches) Left() int64 { return max(0, b.samples-b.Len()*b.batch) }

// Ignored is the label that is not counted, 0 where all are.
func (b *Batches) Ignored() int64 { return b.labels.ignored }

// Tokens is how many labels of a batch count: those that reach the loss and are
// not ignored. It is the weight of the batch's mean loss in a mean over batches.
// Where no input is known to hold labels, it is the number of samples.
func (b *Batches) Tokens(batch map[string]runtime.Tensor) int64 {
	t, ok := batch[b.labels.input]
	if !ok || b.labels.input == "" {
		return b.batch
	}
	return b.labels.in(t)
}

// Compared is how many labels of a batch count, by the input that holds them: of all such inputs.
func (b *Batches) Compared(batch map[string]runtime.Tensor) map[string]int64 {
	counts := map[string]int64{}
	for i := range b.compared {
		counts[b.compared[i].input] = b.compared[i].in(batch[b.compared[i].input])
	}
	return counts
}

// in is how many labels in a tensor count.
func (l *labels) in(t runtime.Tensor) int64 {
	size := l.kind.Size()
	n := int64(0)
	for i := range int64(len(t.Data)) / size {
		if l.counted != nil && !l.counted[i] {
			continue
		}
		if l.ignores && element(t.Data[i*size:], l.kind) == l.ignored {
			continue
		}
		n++
	}
	return n
}

// Counts is what Tokens counts: "tokens" of text, "labels" of arrays, or "samples" where no
// input is known to hold labels.
func (b *Batches) Counts() string {
	switch {
	case b.labels.input == "":
		return "samples"
	case b.identity.Kind == kindNPZ:
		return "labels"
	}
	return "tokens"
}

// Identity is the data's identity and its order's, as Identity.String gives it.
func (b *Batches) Identity() string { return b.identity.String() }

// CheckIdentity compares with an identity that was kept; the error says what differs.
func (b *Batches) CheckIdentity(kept string) error { return b.identity.Check(kept) }
