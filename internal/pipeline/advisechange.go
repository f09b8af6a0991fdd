package pipeline

// Measures that make another training: a half type, another optimizer, frozen parameters,
// adapters in place of all parameters.

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/onnx-remat/remat/rewrite/adapter"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/quantize"
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
			m.Remark = "adds nothing to the order and the updates"
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
		if set&^all == 0 && goTogether(changes, set) {
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
	// What fits alone is shown as a choice, and taken where nothing less does; adapters are
	// taken where no other measure alone is enough, recomputation included.
	for i, c := range changes {
		m := rows[c.name]
		if m.With == nil || !m.With.Fits {
			continue
		}
		if !c.apart && v.advice.Recommended == nil || c.name == MeasureHalf {
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
	fitted.Total, fitted.Bytes = made.Total, made.bytes()
	*t = *v.taken(&fitted, t.Options, t.Changes...)
	return nil
}

// A change makes another training; apply is nil where it does not apply.
type change struct {
	name, did, remark string
	apply             func(*FitOptions)
	// apart: it is taken with no other change.
	apart bool
}

// Why several changes do not apply.
const (
	askedFor  = "asked for already"
	hasUpdate = "the graph has its update: derive it anew from its forward model"
)

// goTogether reports a set of changes that may be taken together.
func goTogether(changes []change, set int) bool {
	if bits.OnesCount(uint(set)) == 1 {
		return true
	}
	for i, c := range changes {
		if c.apart && set>>i&1 == 1 {
			return false
		}
	}
	return true
}

// changes lists them, in the order of the bits of a combination: a combination comes
// after all of its parts, freezing last, and adapters after it.
func (v *adviser) changes() ([]change, error) {
	list, err := v.combinable()
	return append(list, v.adapters()...), err
}

// combinable are the changes of which several may be taken.
func (v *adviser) combinable() ([]change, error) {
	half := change{name: MeasureHalf}
	switch p := v.o.Half; {
	case v.o.Pipeline.Precision != nil:
		half.remark = askedFor
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
	if v.training {
		lighter.remark, freeze.remark = hasUpdate, hasUpdate
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
			o.Derive.Grad.Frozen = slices.Concat(o.Derive.Grad.Frozen, frozen)
		}
	}
	return []change{half, lighter, freeze}, nil
}

// Rank and alpha of the adapters that are tried, on every linear layer.
var tried = adapter.Spec{Globs: []string{"*"}, Rank: 8, Alpha: 16}

// adapters are low-rank pairs on all linear layers, in place of what is trained: with
// the frozen weights as they are, and quantized.
func (v *adviser) adapters() []change {
	var list []change
	for _, c := range []struct {
		name, did string
		kind      quantize.Kind
	}{{MeasureAdapters, "", quantize.None}, {MeasureAdapters8, ", frozen weights in int8", quantize.Int8}, {MeasureAdapters4, ", frozen weights in int4", quantize.Int4}} {
		a := change{name: c.name, did: fmt.Sprintf("train pairs of rank %d beside each linear layer%s", tried.Rank, c.did), apart: true, remark: v.noAdapters(c.kind)}
		if a.remark == "" {
			a.apply = func(o *FitOptions) {
				o.Derive.Grad.Adapters = []adapter.Spec{tried}
				if c.kind != quantize.None {
					o.Derive.Quantize = c.kind
				}
			}
		}
		list = append(list, a)
	}
	return list
}

// noAdapters says why adapters are not tried, "" where they are.
func (v *adviser) noAdapters(kind quantize.Kind) string {
	g := &v.o.Derive.Grad
	switch {
	case v.training:
		return hasUpdate
	case len(g.Adapters) > 0:
		return askedFor
	case len(g.Params)+len(g.Frozen) > 0:
		return "what is trained was asked for"
	case kind == quantize.None:
		return ""
	case v.o.Pipeline.provider().Device:
		return "the CUDA provider has no kernel for weights in blocks"
	case v.o.Pipeline.Precision != nil:
		return "weights in blocks go with float32 only"
	case !slices.ContainsFunc(v.source.Model.Graph.Initializers, quantize.Candidate):
		return "needs a model with its weights: write it with remat model, and ask for advice on that file"
	}
	return ""
}

// otherOptimizer is another kind with its own settings, and all that does not depend on
// the kind.
func otherOptimizer(o optim.Options, kind optim.Kind) optim.Options {
	d := optim.Defaults(kind)
	d.NoDecay, d.ClipNorm, d.ClipBy, d.Norm, d.Accumulate, d.KeepGrads = o.NoDecay, o.ClipNorm, o.ClipBy, o.Norm, o.Accumulate, o.KeepGrads
	return d
}
