package pipeline

// What reaches far at once. A search finds its plans of least peak last: it looks at all
// variants, each from the plans of little work on. Where time is limited, it may end
// before. So the strategies that give one plan each, which take a moment, are tried
// first, on the graph as asked for and with its loss in slices, whatever the limit; the
// plan of them that holds least is written if the search found nothing that holds less.
//
//	no limit   search ───────────────────────────────▶ least
//	a limit    full, loss in slices │ search ──▶ ✕     the better of the two

import (
	"errors"

	"github.com/onnx-remat/remat/planner"
)

// reach finds that plan, where a strategy searches and may be stopped. Where only a command
// that ends stops it, it is asked when the search for the least begins, as a bound for that.
func (p *Planner) reach(s *planner.Solver) error {
	f := p.asked
	if p.opts.Stop == nil || s.Frontier == nil || f.far != nil {
		return nil
	}
	list := []*Variant{f.variants[0]}
	switch v, err := p.variant(s, f, reaching); {
	case err != nil:
		return err
	case v != nil:
		list = append(list, v)
	}
	for _, v := range list {
		for i, strategy := range simpler {
			if i > 0 && p.stopped() {
				break
			}
			if err := p.try(f, v, strategy); err != nil {
				return err
			}
		}
	}
	return nil
}

// try makes a strategy's plan what a family reaches, if it holds less than what does so far.
func (p *Planner) try(f *family, v *Variant, strategy string) error {
	defer p.solving()()
	plan, err := planner.Solve(v.Problem(), strategy)
	if errors.Is(err, planner.ErrNoLayers) || errors.Is(err, planner.ErrNoBackward) {
		return nil
	}
	if err != nil {
		return err
	}
	c, err := v.judged(plan)
	if err != nil {
		return err
	}
	if f.far == nil || c.Peak < f.far.Peak {
		f.far = &c
	}
	return nil
}
