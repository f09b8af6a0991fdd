package pipeline

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// norms is the step of a stack of layers that divide by what they know of the
// variance, as a norm in evaluation does: a few nodes of constants alone in each,
// and an activation that the highest level fuses once it is computed again.
func norms(t *testing.T, layers int) *onnx.Model {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "model ir=10 opset=21\ngraph g {\nin x float32[64,8]\ninit e float32[] = [0.1]\nh0 = Relu(x)\n")
	for i := range layers {
		fmt.Fprintf(&b, "in w%d float32[8,8]\ninit v%[1]d float32[8] = [1, 2, 3, 4, 5, 6, 7, %[1]d]\n", i)
		fmt.Fprintf(&b, "z%d = MatMul(h%[1]d, w%[1]d)\na%[1]d = Add(v%[1]d, e)\nr%[1]d = Sqrt(a%[1]d)\nf%[1]d = Reciprocal(r%[1]d)\n", i)
		fmt.Fprintf(&b, "n%d = Mul(z%[1]d, f%[1]d)\ns%[1]d = Sigmoid(n%[1]d)\nh%d = Mul(n%[1]d, s%[1]d)\n", i, i+1)
	}
	fmt.Fprintf(&b, "loss = ReduceMean(h%d) {keepdims=0}\nout loss float32[]\n}\n", layers)
	m, _ := ortest.Parse(t, b.String())
	if _, err := grad.Differentiate(m, grad.Options{Params: []string{"w*"}}); err != nil {
		t.Fatal(err)
	}
	m.SetMetadata(VersionKey, "test")
	return m
}

// sessions plans and returns how many sessions of ONNX Runtime with the graph that
// took, the planner, and the file.
func sessions(t *testing.T, e *runtime.Engine, m *onnx.Model, budget func(*Planner) Budget) (int, *Planner, *File) {
	t.Helper()
	count := 0
	e.Env.WatchSessions(func(o ort.SessionOptions, _ time.Duration) {
		if o.Purpose != "compute constants" { // of these alone, a few nodes
			count++
		}
	})
	defer e.Env.WatchSessions(nil)
	p, err := NewPlanner(e, m, Options{Provider: ort.CPU, OptLevel: 1, Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.PlanWithin("optimal", budget(p))
	if err != nil && !unmet(err) {
		t.Fatal(err)
	}
	return count, p, f
}

// TestFewSessions: planning opens few sessions of ONNX Runtime, which take longer
// than all else. Their number hangs neither on the layers nor on how many plans'
// files miss the budget.
func TestFewSessions(t *testing.T) {
	const most = 6 // as given, reordered, and for each of two files: fusions, prediction
	e := engine(t)
	missed := 0
	for _, layers := range []int{4, 16} {
		m := norms(t, layers)
		count, p, _ := sessions(t, e, m, func(*Planner) Budget { return Budget{} })
		if _, limited := p.Limited(); count > most || limited {
			t.Errorf("%d layers: %d sessions for the least peak, want at most %d; stopped: %t", layers, count, most, limited)
		}
		for _, share := range []int64{28, 44, 50, 70} {
			count, p, _ := sessions(t, e, m, func(p *Planner) Budget { return Budget{Total: TotalOf(p.Before).Bytes() * share / 100} })
			tried, _ := p.Limited()
			if missed = max(missed, tried-1); count > most {
				t.Errorf("%d layers, %d %%: %d sessions for %d candidates, want at most %d", layers, share, count, tried, most)
			}
		}
	}
	if missed < 1 {
		t.Errorf("no candidate missed a budget: nothing is told")
	}
}

// TestStopped: a planner that is stopped at once has a plan all the same, and says
// that there may be better ones.
func TestStopped(t *testing.T) {
	e := engine(t)
	m := norms(t, 6)
	var last Progress
	o := Options{Provider: ort.CPU, OptLevel: 1, Threads: 1, Stop: func() bool { return true }, Progress: func(p Progress) { last = p }}
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Plan("optimal", 0)
	if err != nil {
		t.Fatal(err)
	}
	tried, limited := p.Limited()
	if !limited || tried == 0 || r.Peak > p.Before.LivePeak {
		t.Errorf("stopped: limited %t after %d candidates, live peak %d of %d", limited, tried, r.Peak, p.Before.LivePeak)
	}
	if last.Tried != tried || last.Best == 0 || last.Best > r.Peak {
		t.Errorf("the last progress is %+v, %d were tried, live peak %d", last, tried, r.Peak)
	}
	follow(t, e, m, r, "optimal, stopped")
}
