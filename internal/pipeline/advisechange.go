package pipeline

// Measures that make another training: a half type, another optimizer, frozen parameters.

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/onnx-remat/remat/rewrite/optim"
)

// others takes the measures with which another training is made.
func (v *adviser) others() error {
	changes, err := v.changes()
	if err != nil {
		return err
	}
	rows := map[string]*Measure{}
	for i := range changes {
		c := &changes[i]
		m := &Measure{Name: c.name, Did: c.did, Remark: c.remark}
		rows[c.name] = m
		if c.apply == nil {
			continue
		}
		o := v.o.FitOptions
		c.apply(&o)
		if c.name == MeasureHalf && v.beyond() {
			m.Remark = "not enough: parameters and state stay float32"
			continue
		}
		alone, err := v.alone(o, c.name)
		if v.ctx.Err() != nil {
			return v.ctx.Err()
		}
		if err != nil {
			c.apply, m.Remark = nil, err.Error()
			continue
		}
		m.Alone, m.With = &alone.Bytes, alone
		if alone.Bytes >= v.base.Bytes {
			m.Remark = "saves nothing here"
		}
	}
	if err := v.combine(changes, rows); err != nil {
		return err
	}
	for _, c := range changes {
		v.add(*rows[c.name])
	}
	return nil
}

// combine fits every combination of changes, those with least first, until one fits. None
// is left out: that more changes hold less is not so, as where frozen weights are packed.
func (v *adviser) combine(changes []change, rows map[string]*Measure) error {
	var sets []int
	all := 0
	for i, c := range changes {
		if c.apply != nil {
			all |= 1 << i
		}
	}
	for set := 1; set <= all; set++ {
		if set&^all == 0 {
			sets = append(sets, set)
		}
	}
	if all == 0 {
		return nil
	}
	fitted := map[int]*Taken{}
	try := func(set int) (*Taken, error) {
		if t := fitted[set]; t != nil {
			return t, nil
		}
		o := v.o.FitOptions
		var names []string
		for i, c := range changes {
			if set>>i&1 == 1 {
				c.apply(&o)
				names = append(names, c.name)
			}
		}
		t, err := v.fit(o, names...)
		if err != nil {
			return nil, err
		}
		fitted[set] = t
		m := rows[names[len(names)-1]]
		if m.With == nil || t.Fits && !m.With.Fits || t.Fits == m.With.Fits && (len(names) == 1 || !t.Fits && t.Bytes < m.With.Bytes) {
			m.With = t
		}
		return t, nil
	}
	// What fits alone is shown as a choice, and taken where nothing less does.
	for i, c := range changes {
		m := rows[c.name]
		if m.With == nil || !m.With.Fits {
			continue
		}
		if v.advice.Recommended == nil || c.name == MeasureHalf {
			t, err := try(1 << i)
			if err != nil {
				return err
			}
			if t.Fits && v.advice.Recommended == nil {
				v.advice.Recommended = t
			}
		} else if err := v.asRun(m.With); err != nil {
			return err
		}
	}
	if v.advice.Recommended != nil {
		return nil
	}
	few := func(a, b int) int { return cmp.Compare(bits.OnesCount(uint(a)), bits.OnesCount(uint(b))) }
	slices.SortStableFunc(sets, few)
	for _, set := range sets {
		if set == 1 && v.beyond() {
			continue
		}
		t, err := try(set)
		if err != nil {
			return err
		}
		if t.Fits {
			v.advice.Recommended = t
			return nil
		}
	}
	return nil
}

// asRun predicts a derived graph as ONNX Runtime runs it, not as it stands. What was
// written is known already.
func (v *adviser) asRun(t *Taken) error {
	if t.Options.Strategy != AsDerived || t.Options.Pipeline.AsIs {
		return nil
	}
	f, splits, err := v.fitting(t.Options)
	if err != nil {
		return err
	}
	made, err := f.made(splits[0], t.Options.Derive, f.engine)
	if err != nil {
		return err
	}
	fitted := *t.Fitted
	fitted.Total, fitted.Bytes = made.Total, made.Total.Bytes()+sum(made.beside)
	t.Fitted, t.Fits = &fitted, fitted.Bytes <= v.o.Memory
	return nil
}

// A change makes another training; apply is nil where it does not apply.
type change struct {
	name, did, remark string
	apply             func(*FitOptions)
}

// changes lists them, in the order of the bits of a combination: a combination comes
// after all of its parts, and freezing last.
func (v *adviser) changes() ([]change, error) {
	half := change{name: MeasureHalf}
	switch p := v.o.Half; {
	case v.o.Pipeline.Precision != nil:
		half.remark = "asked for already"
	case p == nil:
		half.remark = "none was offered"
	default:
		half.did = fmt.Sprintf("compute in %s; parameters stay float32", p.To)
		if p.StashOnly {
			half.did = fmt.Sprintf("keep values for backward in %s", p.To)
		}
		half.apply = func(o *FitOptions) { o.Pipeline.Precision = p }
	}
	lighter, freeze := change{name: MeasureOptimizer}, change{name: MeasureFreeze}
	const trains = "the graph has its update: derive it anew from its forward model"
	if v.training {
		lighter.remark, freeze.remark = trains, trains
		return []change{half, lighter, freeze}, nil
	}
	if kind := v.o.Lighter; kind == "" {
		lighter.remark = fmt.Sprintf("%s keeps no state", v.o.Derive.Update.Kind)
	} else {
		lighter.did = fmt.Sprintf("%s instead of %s", kind, v.o.Derive.Update.Kind)
		lighter.apply = func(o *FitOptions) { o.Derive.Update = otherOptimizer(o.Derive.Update, kind) }
	}
	if len(v.o.Derive.Grad.Adapters) > 0 {
		freeze.remark = "nearly all is frozen: --lora trains what it adds"
		return []change{half, lighter, freeze}, nil
	}
	frozen, text, err := v.firstHalf()
	if err != nil {
		return nil, err
	}
	if freeze.did = text; len(frozen) == 0 {
		freeze.remark = "no part of the parameters comes first"
	} else {
		freeze.apply = func(o *FitOptions) {
			o.Derive.Grad.Frozen = append(append([]string{}, o.Derive.Grad.Frozen...), frozen...)
		}
	}
	return []change{half, lighter, freeze}, nil
}

// otherOptimizer is another kind with its own settings, and all that does not depend on
// the kind.
func otherOptimizer(o optim.Options, kind optim.Kind) optim.Options {
	d := optim.Defaults(kind)
	d.NoDecay, d.ClipNorm, d.ClipBy, d.Norm, d.Accumulate, d.KeepGrads = o.NoDecay, o.ClipNorm, o.ClipBy, o.Norm, o.Accumulate, o.KeepGrads
	return d
}
