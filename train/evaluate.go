package train

// Evaluation: the mean loss over data, and exp of it. Each batch weighs as much as it
// has labels that count, since a batch's loss is their mean.

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/onnx-remat/remat/runtime"
)

// Evaluate runs a session of a graph that returns its loss over the first count
// batches and returns their mean loss. After the context it stops with its error.
func Evaluate(ctx context.Context, s *runtime.Session, b Batches, count int64) (Validation, error) {
	v := Validation{}
	if count < 1 {
		return v, errors.New("no batch to evaluate")
	}
	making, stop := context.WithCancel(ctx)
	defer stop()
	next := ahead(making, b, 0)
	start := time.Now()
	sum := 0.0
	for ; v.Batches < count; v.Batches++ {
		if err := ctx.Err(); err != nil {
			return v, err
		}
		batch, ok := <-next
		if !ok {
			return v, ctx.Err()
		}
		if batch.err != nil {
			return v, batch.err
		}
		if err := s.Feed(batch.values); err != nil {
			return v, fmt.Errorf("batch %d: %w", v.Batches, err)
		}
		out, err := s.Step(ctx)
		if err != nil {
			return v, err
		}
		loss, err := lossOf(s, out)
		if err != nil {
			return v, err
		}
		if batch.tokens == 0 {
			continue // no label counts: its loss is a mean over nothing
		}
		if v.NotFinite == "" && (math.IsNaN(loss) || math.IsInf(loss, 0)) {
			v.NotFinite = fmt.Sprintf("the loss of batch %d of %d is %s", v.Batches+1, count, number(loss))
			if input := holdsNaN(batch.values); input != "" {
				v.NotFinite += fmt.Sprintf(": its input %q holds a NaN", input)
			}
		}
		sum += loss * float64(batch.tokens)
		v.Tokens += batch.tokens
	}
	s.Release()
	if v.Tokens == 0 {
		return v, errors.New("no label of the data counts")
	}
	v.Loss = sum / float64(v.Tokens)
	v.Perplexity = math.Exp(v.Loss)
	v.Seconds = time.Since(start).Seconds()
	return v, nil
}

// lossOf is the loss that a run returned.
func lossOf(s *runtime.Session, out *runtime.Step) (float64, error) {
	o, ok := out.Output(s.Roles.Loss)
	if !ok {
		return 0, errors.New("the graph returns no loss: name it with --roles")
	}
	if o.Err != nil {
		return 0, fmt.Errorf("output %q: %w", o.Name, o.Err)
	}
	v, ok := o.Scalar()
	if !ok {
		return 0, fmt.Errorf("output %q: the loss is %s, not one number", o.Name, o.Tensor)
	}
	return v, nil
}
