package pipeline

// Casts planned together with recomputation, against one after the other.
//
//	jointly                the plan may run casts again like anything else
//	cast, then recompute   casts run only once; what they make is kept
//	recompute, then cast   the plan is made for float32, and the file that
//	                       follows it converted

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A point is what one plan leads to, as the judge of plans says: the same for
// the three, whatever the file makes of it.
type point struct {
	peak     int64
	overhead float64
}

var plainStrategies = []string{"none", "sqrt", "full", "selective", "every=2", "segments=2"}

// BenchmarkJoint prints, for ten budgets a model, the least overhead of each
// way; the budgets lie between the least and the plain peak of planning
// jointly.
func BenchmarkJoint(b *testing.B) {
	for _, row := range models.Rows {
		if strings.HasPrefix(row.Name, "gpt2-") && row.Name != "gpt2-tiny" {
			continue // the same graph with other sizes
		}
		b.Run(row.Name, func(b *testing.B) {
			for range b.N {
				joint(b, row.Name)
			}
		})
	}
}

func joint(b *testing.B, name string) {
	m := trainingGraph(b, name, func(c *models.Config) {
		c.Layers, c.Hidden, c.Batch = min(c.Layers, 6), 64, 512
		if c.Heads > 0 {
			c.Heads = 4
		}
		if c.Vocab > 0 {
			c.Vocab = 128
		}
		if c.Seq > 0 {
			c.Seq, c.Batch = 64, 4
		}
	})
	half := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, AsIs: true, Precision: &precision.Options{To: onnx.Float16, Provider: "cuda"}}
	full := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, AsIs: true}
	together, err := NewPlanner(nil, m, half)
	if err != nil {
		b.Fatal(err)
	}
	once, err := NewPlanner(nil, m, half)
	if err != nil {
		b.Fatal(err)
	}
	once.base().Analysis.Problem = castsOnce(once.base().Analysis)
	before, err := NewPlanner(nil, m, full)
	if err != nil {
		b.Fatal(err)
	}
	budgets := budgetsOf(b, together)
	ways := []struct {
		name   string
		points []point
	}{
		{"jointly", points(b, together, budgets, (*Planner).Apply)},
		{"cast, then recompute", points(b, once, budgets, (*Planner).Apply)},
		{"recompute, then cast", points(b, before, budgetsOf(b, before), func(p *Planner, plan *planner.Plan) (*File, error) { return castLater(p, plan, half) })},
	}
	worse, table := 0, ""
	for _, budget := range budgets {
		table += fmt.Sprintf("\n%-10s %8d KiB", name, budget>>10)
		var cost []float64
		for _, w := range ways {
			cost = append(cost, cheapest(w.points, budget))
			table += fmt.Sprintf("  %s %6.2f %%", w.name, 100*cost[len(cost)-1])
		}
		if cost[0] > cost[1]+1e-9 || cost[0] > cost[2]+1e-9 {
			worse++
			table += "  (worse)"
		}
	}
	b.Log(table)
	if worse > 0 {
		b.Errorf("%s: planning jointly is worse at %d of 10 budgets", name, worse)
	}
}

// budgetsOf are ten budgets from the least to the plain peak, by the judge.
func budgetsOf(b *testing.B, p *Planner) []int64 {
	var peaks [2]int64
	for i, strategy := range []string{"optimal", "none"} {
		plan, err := solveWithCasts(p.base().Analysis, strategy, 0)
		if err != nil {
			b.Fatal(err)
		}
		v, err := planner.Judge(p.Problem(), plan)
		if err != nil {
			b.Fatal(err)
		}
		peaks[i] = v.Peak
	}
	var list []int64
	for k := range int64(10) {
		list = append(list, peaks[0]+(peaks[1]-peaks[0])*k/9)
	}
	return list
}

// points are what every strategy, and optimal under the budgets, lead to.
func points(b *testing.B, p *Planner, budgets []int64, write func(*Planner, *planner.Plan) (*File, error)) []point {
	var out []point
	add := func(strategy string, budget int64) {
		plan, err := solveWithCasts(p.base().Analysis, strategy, budget)
		var inf *planner.InfeasibleError
		if errors.As(err, &inf) {
			return
		}
		if err != nil {
			b.Fatal(err)
		}
		r, err := write(p, plan)
		if err != nil {
			b.Fatalf("%s: %v", strategy, err)
		}
		out = append(out, point{r.Verdict.Peak, r.Verdict.Overhead})
	}
	for _, s := range plainStrategies {
		add(s, 0)
	}
	add("optimal", 0)
	for _, budget := range budgets {
		add("optimal", budget)
	}
	return out
}

// castLater writes a float32 plan's file, converts it, and orders it anew.
func castLater(p *Planner, plan *planner.Plan, half Options) (*File, error) {
	r, err := p.Apply(plan)
	if err != nil {
		return nil, err
	}
	later, err := Prepare(nil, r.Model, half)
	if err != nil {
		return nil, err
	}
	order, err := planner.Solve(later.Analysis.Problem, "none")
	if err != nil {
		return nil, err
	}
	q := plannerOf(nil, later)
	written, err := q.Apply(order)
	if err != nil {
		return nil, err
	}
	written.Verdict.Overhead = r.Verdict.Overhead // of the order alone, none
	return written, nil
}

// cheapest is the least overhead within a budget, infinite where none keeps it.
func cheapest(points []point, budget int64) float64 {
	least := math.Inf(1)
	for _, p := range points {
		if p.peak <= budget {
			least = min(least, p.overhead)
		}
	}
	return least
}

// solveWithCasts runs a strategy, with casts that run once too: for the least peak,
// or for the least work within a budget.
func solveWithCasts(a *analysis.Analysis, strategy string, budget int64) (*planner.Plan, error) {
	v := &Variant{Analysis: a, castsOnce: castsOnce(a)}
	s, _, err := planner.Find(strategy)
	if err != nil {
		return nil, err
	}
	if budget == 0 {
		list, err := v.solve(s, strategy)
		if err != nil {
			return nil, err
		}
		return list[0].Plan()
	}
	var best *planner.Candidate
	for _, problem := range v.problems() {
		for c, err := range s.Frontier(problem, budget, nil) {
			if err != nil {
				return nil, err
			}
			if best == nil || c.Overhead < best.Overhead {
				best = &c
			}
			break
		}
	}
	if best == nil {
		return nil, &planner.InfeasibleError{Budget: budget}
	}
	return best.Plan()
}
