package pipeline

// The dual of a budget: the file that holds least among those that compute no more than
// a share of the plain step's work again. Of the candidates within the share, in all
// variants, those of least peak are written, since a file may hold a little more than
// the judge says.

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/planner"
)

// leastWritten is how many candidates are written though they promise no less: in a tiny
// graph, files hold more or less than the judge says.
const leastWritten = 4

// within returns that file. Where no candidate is within the share, nothing is computed
// again but what was asked for, which has to be.
func (p *Planner) within(s *planner.Solver, budget Budget) (*File, error) {
	work := *budget.Work
	if !budget.none() {
		return nil, errors.New("a bound on the work and one on the memory: give one of them")
	}
	if s.Frontier == nil || s.Unbounded {
		return nil, fmt.Errorf("strategy %s takes no bound on its work: use optimal", s.Name)
	}
	list, err := p.curve(s, work)
	if err != nil {
		return nil, err
	}
	best, err := p.lowest(list, work)
	if err != nil {
		return nil, err
	}
	if best == nil && len(p.opts.Layers) > 0 {
		return nil, &WorkError{Work: work}
	}
	if best == nil {
		f, err := p.repeatingNothing(p.asked, Budget{})
		if err == nil && f.overhead() > work {
			return f, &WorkError{work, f.overhead()}
		}
		return f, err
	}
	return p.orNone(best)
}

// curve returns the candidates of all variants that no other one beats in both peak and
// work, up to a share of the plain step's work, by ascending work and descending peak.
func (p *Planner) curve(s *planner.Solver, work float64) ([]Candidate, error) {
	b := newBargain(0, -1) // where none has a price, all of the curve counts
	b.thorough = true
	err := p.follow(s, work, b)
	return b.curve, err
}

// follow adds the candidates up to that work to the curve, as long as one of more work may be
// of use.
func (p *Planner) follow(s *planner.Solver, work float64, b *bargain) error {
	for c, err := range p.ascending(s, Budget{Live: math.MaxInt64}, b) {
		if err != nil {
			return err
		}
		if c.Overhead > work || b.useful(c.Overhead) <= 0 {
			return nil
		}
		b.add(c)
	}
	return nil
}

// lowest returns the file that holds least among those of the last candidates of a curve
// that keep to the work; nil where none does. ONNX Runtime takes longer to look at a file
// than all else together, so the one whose plan holds least is written first, and another
// one only if it may hold less.
func (p *Planner) lowest(list []Candidate, work float64) (*File, error) {
	order, err := p.byPromise(list)
	if err != nil {
		return nil, err
	}
	var best *File
	var fruitless patience
	for k, c := range order {
		var less Budget
		if best != nil {
			if p.stopped() || k >= leastWritten && c.Peak >= almost(best.Peak) || fruitless.over() {
				break
			}
			if holds, err := p.holds(c); err != nil {
				return nil, err
			} else if holds > best.Peak+shapesBytes {
				continue
			}
			less.Live = best.Peak - 1 // else it is not finished
		}
		f, err := p.file(c, less)
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		better := f.Finished && f.overhead() <= work && f.limited() == nil && (best == nil || f.Peak < best.Peak)
		if better {
			best = f
		}
		fruitless.note(f, better)
	}
	return best, nil
}

// patienceNodes is how many nodes the files that ONNX Runtime was asked about may have in all
// since one of them was the best. Where it computes float16 between casts of its own,
// each file of a curve promises less than the best one holds, and asking about one of
// 10,000 nodes takes seconds.
const patienceNodes = 40_000

// A patience counts the nodes of files that came to nothing, in a row.
type patience int

func (p *patience) note(f *File, better bool) {
	switch {
	case better:
		*p = 0
	case f.asked:
		*p += patience(len(f.Model.Graph.Nodes))
	}
}

// over reports that no more files are worth their time.
func (p patience) over() bool { return p >= patienceNodes }

// byPromise lists candidates, the last of the curve first, and of the first leastWritten of
// them that whose plan holds least.
func (p *Planner) byPromise(list []Candidate) ([]Candidate, error) {
	order := slices.Clone(list)
	slices.Reverse(order)
	n := min(leastWritten, len(order))
	held := make([]int64, n)
	at := make([]int, n)
	for i := range n {
		if at[i] = i; i > 0 && p.stopped() {
			held[i] = math.MaxInt64
			continue
		}
		var err error
		if held[i], err = p.holds(order[i]); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(at, func(a, b int) int { return cmp.Compare(held[a], held[b]) })
	first := make([]Candidate, 0, n)
	for _, i := range at {
		first = append(first, order[i])
	}
	return append(first, order[n:]...), nil
}

// holds is the peak of a candidate's plan in bytes as it is judged, legalized and moved.
func (p *Planner) holds(c Candidate) (int64, error) {
	defer p.solving()()
	plan, err := c.Plan()
	if err != nil {
		return 0, err
	}
	v, err := planner.Judge(c.Variant.Problem(), plan)
	return v.Peak, err
}
