package train

import (
	"context"
	goruntime "runtime"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestMemoryIsFlat: over 2,000 steps, with validations and states between them, the
// process does not grow: the slope of its resident size, by least squares, is less than
// a page in ten steps.
func TestMemoryIsFlat(t *testing.T) {
	const steps, warm = 2000, 400
	j, _ := modes[7].job(t, func(c *models.Config) { c.Hidden = 32 })
	forward, err := modes[7].source(t, func(c *models.Config) { c.Hidden = 32 }).Forward(j.Session.Roles)
	if err != nil {
		t.Fatal(err)
	}
	inside, err := ortest.Engine(t).Open(forward, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Share: j.Session})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	var x, y []float64
	j.Watcher = sizes{func(step int64) {
		if step < warm || step%20 != 0 {
			return
		}
		goruntime.GC() // what Go's heap holds for a while is not growth
		n, err := runtime.RSS()
		if err != nil {
			t.Fatal(err)
		}
		x, y = append(x, float64(step)), append(y, float64(n))
	}}
	j.Schedule.Steps, j.SaveEvery, j.EvalEvery = steps, 250, 100
	j.Evaluate = func(ctx context.Context) (Validation, error) { return Evaluate(ctx, inside, tinyData, 3) }
	if _, err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	if s := slope(x, y); s > 410 {
		t.Errorf("the process grows by %.0f bytes a step: from %.0f to %.0f", s, y[0], y[len(y)-1])
	} else {
		t.Logf("%.1f bytes a step, %.0f to %.0f", s, y[0], y[len(y)-1])
	}
}

// sizes is told after each step.
type sizes struct{ after func(int64) }

func (s sizes) Step(r Record) error      { s.after(r.Step); return nil }
func (sizes) Validated(Validation) error { return nil }
func (sizes) Saved(string, int64) error  { return nil }
func (sizes) Close() error               { return nil }

// slope of the line through the points with the least squares.
func slope(x, y []float64) float64 {
	var mx, my float64
	for i := range x {
		mx, my = mx+x[i]/float64(len(x)), my+y[i]/float64(len(x))
	}
	var a, b float64
	for i := range x {
		a, b = a+(x[i]-mx)*(y[i]-my), b+(x[i]-mx)*(x[i]-mx)
	}
	return a / b
}
