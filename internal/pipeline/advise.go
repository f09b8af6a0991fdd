package pipeline

// What helps a model into a memory, by prediction: each measure alone and with those
// before it.
//
//	as made ─▶ order ─▶ updates in backward ─▶ recomputation ─▶ parts ─▶ micro-batches
//	                                           └────────── Fit: the least work ──────┘
//	   ─▶ half types, another optimizer, frozen parameters: in every combination, the
//	      one that changes least first, until one fits; adapters, with what they leave
//	      frozen as it is and quantized, come after each of these alone
//
// The measures of the upper line train the same; those of the lower do not, so they
// are taken only where nothing else fits. That nothing fits is said where none of their
// combinations does.

import (
	"context"

	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime"
)

// AdviseOptions say what is trained, within what, and which measures may be tried.
type AdviseOptions struct {
	FitOptions
	// Half is the half type that is tried, nil for none, and Lighter an optimizer with
	// less state, "" for none.
	Half    *precision.Options
	Lighter optim.Kind
}

// Advice is what a model needs, and what would have it fit.
type Advice struct {
	Memory   int64 // bytes
	Need     Need
	Measures []Measure
	// Recommended is what fits with least work among what changes least, nil where
	// nothing fits; Nearest is then what comes closest.
	Recommended, Nearest *Taken
	// Largest is the largest batch of a run within the memory if all of forward is computed
	// again, the loss in parts, with the changes of what is recommended; nil
	// where it is not known.
	Largest *int64
}

// A Measure is one thing that can be done.
type Measure struct {
	Name string
	// Did says what it does here.
	Did string
	// Alone is what a step takes with order, updates in backward and this measure, in
	// bytes, nil where it was not looked at.
	Alone *int64
	// With is the measure with those that stand before it, nil where it does not
	// apply.
	With *Taken
	// Remark says why a measure does not help, "" where it does.
	Remark string
}

// Taken is a graph that trains, and how it comes about.
type Taken struct {
	*Fitted
	Fits bool
	// Options lead there: the optimizer, what is frozen, the half type, the strategy.
	Options FitOptions
	// Changes names the measures with which the training is another one.
	Changes []string
}

// Work is what an update has more of than a plain one, as a share of that.
func (t *Taken) Work() float64 {
	if t.Accumulate <= 1 {
		return t.Overhead
	}
	return t.More
}

// Names of measures.
const (
	MeasureOrder     = "order"
	MeasureUpdates   = "update in the backward pass"
	MeasureRecompute = "recomputation"
	MeasureParts     = "loss and attention in parts"
	MeasureMicro     = "micro-batch x accumulation"
	MeasureHalf      = "half types"
	MeasureOptimizer = "another optimizer"
	MeasureFreeze    = "freezing"
	MeasureAdapters  = "adapters"
	MeasureAdapters8 = "adapters, the rest in int8"
	MeasureAdapters4 = "adapters, the rest in int4"
)

// Advise says what helps. Nothing is written.
func Advise(ctx context.Context, e *runtime.Engine, source *Source, o AdviseOptions) (*Advice, error) {
	o.Out = ""
	if o.Norm == NormIfFree {
		o.Norm = NormNever
	}
	o.Quick = true
	v := &adviser{Fitter: NewFitter(ctx, e, source), o: o, advice: &Advice{Memory: o.Memory}, shown: map[string]*shown{}}
	for _, step := range []func() error{v.plain, v.same, v.others, v.largest} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return v.advice, nil
}

// An adviser is one run of Advise.
type adviser struct {
	*Fitter
	o      AdviseOptions
	advice *Advice
	// base is the step with order and updates in backward, unbounded.
	base *Taken
	// axis is the batch; training: the source is a training graph.
	axis     batchAxis
	training bool
	shown    map[string]*shown
}

func (v *adviser) add(m Measure) { v.advice.Measures = append(v.advice.Measures, m) }

// fit fits under options. That nothing fits is no error here.
func (v *adviser) fit(o FitOptions, changes ...string) (*Taken, error) {
	fitted, err := v.nearest(o)
	if err != nil {
		return nil, err
	}
	t := v.taken(fitted, o, changes...)
	if err := v.ctx.Err(); err != nil {
		return nil, err
	}
	best := v.advice.Nearest
	if best == nil || t.Bytes < best.Bytes {
		v.advice.Nearest = t
	}
	return t, nil
}

// taken is what was fitted under options.
func (v *adviser) taken(fitted *Fitted, o FitOptions, changes ...string) *Taken {
	return &Taken{Fitted: fitted, Fits: fitted.Bytes <= v.o.Memory, Options: o, Changes: changes}
}

// alone is the step of the whole batch that remat grad writes under options, as it
// stands; in half it takes a planner.
func (v *adviser) alone(o FitOptions, changes ...string) (*Taken, error) {
	if o.Pipeline.Precision != nil || v.training {
		if half := o.Pipeline.Precision; half != nil {
			early := *half
			early.Early = true
			o.Pipeline.Precision = &early
		}
		t, err := v.written(o, "none")
		if err != nil {
			return nil, err
		}
		t.Changes, t.Options.Pipeline.AsIs = changes, true
		return t, nil
	}
	f, splits, err := v.fitting(o)
	if err != nil {
		return nil, err
	}
	s := splits[0]
	made, err := f.made(s, o.Derive, nil)
	if err != nil {
		return nil, err
	}
	o.Strategy = AsDerived
	return v.taken(&Fitted{
		MicroBatch: s.micro, Accumulate: s.runs, Dims: f.axis.with(o.Pipeline.Dims, s.micro), Total: made.Total, Beside: made.beside, Bytes: made.bytes(),
	}, o, changes...), nil
}

// AsDerived is the strategy of a Taken that is the derived graph itself.
const AsDerived = "as derived"

// fitting is a run of Fit that has not begun, and the splits that it looks at.
func (v *adviser) fitting(o FitOptions) (*fitting, []split, error) {
	f := &fitting{Fitter: v.Fitter, o: o}
	if err := f.look(); err != nil {
		return nil, nil, err
	}
	splits, err := f.splits()
	return f, splits, err
}

// plain says what the model needs as it is made, and what order does.
func (v *adviser) plain() error {
	f, splits, err := v.fitting(v.o.FitOptions)
	if err != nil {
		return err
	}
	v.axis, v.training = f.axis, f.training
	kept := v.o.Derive
	kept.Unordered, kept.Update.KeepGrads = true, true
	need, err := f.made(splits[0], kept, nil)
	if err != nil {
		return err
	}
	v.advice.Need = *need
	if v.base, err = v.alone(v.o.FitOptions); err != nil {
		return err
	}
	if v.base.Fits { // it may be what is recommended
		o := v.o.FitOptions
		o.Strategy, o.Whole, o.Memory, o.Pipeline.AsIs = "none", true, 0, true
		fitted, err := v.Fit(o)
		if err != nil {
			return err
		}
		v.base = v.taken(fitted, o)
	}
	v.advice.Nearest = v.base
	if v.training {
		v.add(v.losing(Measure{Name: MeasureOrder, Did: "the one that holds least", Alone: &v.base.Bytes, With: v.base}))
		return nil
	}
	o := v.o.FitOptions
	o.Derive.Update.KeepGrads = true
	ordered, err := v.alone(o)
	if err != nil {
		return err
	}
	if ordered.Fits {
		if err := v.asRun(ordered); err != nil {
			return err
		}
	}
	v.add(v.losing(Measure{Name: MeasureOrder, Did: "the one that holds least; gradients are kept to the end", Alone: &ordered.Bytes, With: ordered}))
	m := Measure{Name: MeasureUpdates, Did: "each parameter as soon as its gradient is complete", Alone: &v.base.Bytes, With: v.base}
	if v.base.Bytes >= ordered.Bytes {
		m.Remark = "adds nothing: the peak lies before the gradients"
	}
	v.add(m)
	return nil
}
