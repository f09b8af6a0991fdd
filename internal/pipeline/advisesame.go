package pipeline

// Measures with which the training stays the same: what Fit chooses among. Those that it
// did not take are shown by the file that computes all of forward again, which is quickly
// made.

import (
	"fmt"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/planner"
)

// losing remarks on a measure that takes more than nothing does.
func (v *adviser) losing(m Measure) Measure {
	if more := *m.Alone - sum(v.base.Beside) - v.advice.Need.Total.Bytes(); more > 0 {
		m.Remark = "alone it loses here"
	}
	return m
}

// same takes the measures with which the training stays the same.
func (v *adviser) same() error {
	if v.base.Fits {
		v.advice.Recommended = v.base
		const unneeded = "not needed"
		for _, name := range []string{MeasureRecompute, MeasureParts, MeasureMicro} {
			v.add(Measure{Name: name, With: v.base, Remark: unneeded})
		}
		return nil
	}
	o := v.o.FitOptions
	if v.beyond() {
		remark := fmt.Sprintf("not enough: parameters and state alone take %s", units.Bytes(v.base.Total.Parameters+v.base.Total.State))
		for _, name := range []string{MeasureRecompute, MeasureParts, MeasureMicro} {
			v.add(Measure{Name: name, Remark: remark})
		}
		return nil
	}
	micro, err := v.fit(o)
	if err != nil {
		return err
	}
	if micro.Fits {
		v.advice.Recommended = micro
	}
	whole := micro.Fits && micro.Accumulate <= max(v.o.Derive.Update.Accumulate, 1)
	o.Whole, o.Pipeline.AsIs = true, true
	again, err := v.written(o, "full")
	if err != nil {
		return err
	}
	m := Measure{Name: MeasureRecompute, Did: "all of forward", Alone: &again.Bytes, With: again}
	if whole && decided(micro, decisionParts) == "" {
		m.Did, m.With = decided(micro, MeasureRecompute), micro
	}
	v.add(v.compared(m, v.base))
	before := m.With
	o.Pipeline.AsIs = v.o.Pipeline.AsIs
	m = Measure{Name: MeasureParts}
	none, err := v.inParts(o, "none")
	if err != nil {
		return err
	}
	switch {
	case none == nil:
		m.Remark = "nothing is wide enough to be divided"
	case before == micro:
		m.Alone, m.With, m.Remark = &none.Bytes, before, "not needed"
	case whole:
		m.Alone, m.Did, m.With = &none.Bytes, decided(micro, decisionParts), micro
	default:
		m.Alone, m.Did = &none.Bytes, none.Decisions[0].Did
		if m.With, err = v.inParts(o, "full"); err != nil {
			return err
		}
	}
	v.add(v.compared(m, before))
	if m.With != nil {
		before = m.With
	}
	if m, err = v.micro(micro); err != nil {
		return err
	}
	v.add(v.compared(m, before))
	return nil
}

// compared remarks on a measure that does not take less, nor less work, than those before it.
func (v *adviser) compared(m Measure, before *Taken) Measure {
	if m.Remark != "" || m.With == nil {
		return m
	}
	switch {
	case m.Alone != nil && *m.Alone > v.base.Bytes:
		m.Remark = "alone it takes more here"
	case before.Fits && m.With.Fits && m.With.Work() >= before.Work(), !before.Fits && m.With.Bytes >= before.Bytes:
		m.Remark = "adds nothing to the measures before it"
	}
	return m
}

// decided is what a decision of that name says, "" without one.
func decided(t *Taken, measure string) string {
	for _, d := range t.Decisions {
		if d.Measure == measure {
			return d.Did
		}
	}
	return ""
}

// inParts is the step of the whole batch with the loss and wide products in parts, as a
// strategy leads to it; nil where nothing is wide.
func (v *adviser) inParts(o FitOptions, strategy string) (*Taken, error) {
	o.Pipeline.Chunk, o.Pipeline.Tile = auto, auto
	return v.written(o, strategy)
}

// A shown graph is one that no search was made for.
type shown struct {
	planner *Planner // that can only write
	variant *Variant
	beside  []Part
}

// show prepares the graph of the whole batch.
func (v *adviser) show(o FitOptions) (*shown, split, error) {
	f, splits, err := v.fitting(o)
	if err != nil {
		return nil, split{}, err
	}
	s := splits[0]
	key := f.key(s, false)
	if known := v.shown[key]; known != nil {
		return known, s, nil
	}
	po := o.Pipeline
	po.Dims = f.axis.with(po.Dims, s.micro)
	given, err := f.typedStep(s, o.Derive)
	if err != nil {
		return nil, s, err
	}
	variant, err := Prepare(v.engine, given, po)
	if err != nil {
		return nil, s, fmt.Errorf("%s: %w", v.source.Path, err)
	}
	show := &shown{planner: &Planner{engine: v.engine, given: given, opts: po}, variant: variant, beside: f.ahead(given, variant.Analysis.Roles)}
	v.shown[key] = show
	return show, s, nil
}

// written is the step of the whole batch that a strategy leads to, as it stands; nil where
// parts were asked for and none made.
func (v *adviser) written(o FitOptions, strategy string) (*Taken, error) {
	show, s, err := v.show(o)
	if err != nil {
		return nil, err
	}
	variant := show.variant
	if o.Pipeline.divides() && variant.Divided == (Divided{}) {
		return nil, nil
	}
	plan, err := planner.Solve(variant.Problem(), strategy)
	if err != nil {
		return nil, err
	}
	file, err := show.planner.write(variant, plan)
	if err != nil {
		return nil, err
	}
	o.Strategy = strategy
	total := TotalOf(file.Prediction)
	return v.taken(&Fitted{
		MicroBatch: s.micro, Accumulate: s.runs, Dims: variant.Options.Dims, Total: total, Beside: show.beside,
		Bytes: total.Bytes() + sum(show.beside), Overhead: file.overhead(), Decisions: []Decision{{Measure: decisionParts, Did: dividedText(variant)}},
	}, o), nil
}

// beyond reports that no plan of the whole batch fits: what does not depend on the plan
// takes more.
func (v *adviser) beyond() bool {
	t := v.base.Total
	return t.Parameters+t.State+t.Feeds+sum(v.base.Beside) > v.o.Memory && (v.axis.size(v.o.Pipeline.Dims) <= 1 || t.Parameters+t.State > v.o.Memory)
}

// micro describes the split of the batch.
func (v *adviser) micro(with *Taken) (Measure, error) {
	m := Measure{Name: MeasureMicro, With: with}
	f, splits, err := v.fitting(v.o.FitOptions)
	if err != nil {
		return m, err
	}
	if len(splits) == 1 {
		switch m.Remark = f.whole; {
		case f.whole != "":
			m.Remark = "the batch stays whole: " + f.whole
		case v.training:
			m.Remark = "the graph says how many runs make an update"
		case v.o.Derive.Update.Accumulate > 0:
			m.Remark = "--accumulate says how many runs make an update"
		case v.axis.name == "":
			m.Remark = "no free axis is known to be the batch"
		default:
			m.Remark = "a batch of 1 is not divided"
		}
		return m, nil
	}
	least, err := f.made(splits[len(splits)-1], v.o.Derive, nil)
	if err != nil {
		return m, err
	}
	m.Alone = new(least.bytes())
	m.Did = fmt.Sprintf("%d = %d x %d runs", with.MicroBatch*with.Accumulate, with.MicroBatch, with.Accumulate)
	return m, nil
}
