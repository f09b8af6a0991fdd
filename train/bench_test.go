package train

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/runtime"
)

// BenchmarkLoop compares the time of a step of the loop, all in, with the time that
// ONNX Runtime takes for a run of the same graph, as remat run measures it: in turns, so
// that both meet the same machine; the cost is the median over turns of the ratio of
// their medians. With REMAT_LARGE it takes GPT-2 124M too.
func BenchmarkLoop(b *testing.B) {
	for _, c := range []struct {
		name   string
		block  int64 // steps in a turn
		turns  int
		most   float64
		change func(*models.Config)
	}{
		{"gpt2-tiny", 40, 25, 0.03, func(c *models.Config) {
			c.Layers, c.Hidden, c.Heads, c.Vocab, c.Positions, c.Seq, c.Batch = 2, 64, 4, 512, 64, 64, 2
		}},
		{"gpt2", 4, 8, 0.005, func(c *models.Config) {
			c.Layers, c.Hidden, c.Heads, c.Vocab, c.Positions, c.Seq, c.Batch = 12, 768, 12, 50257, 1024, 64, 1
		}},
	} {
		if c.name == "gpt2" && os.Getenv("REMAT_LARGE") == "" {
			continue
		}
		b.Run(c.name, func(b *testing.B) {
			src := modes[0].source(b, c.change)
			s := modes[0].open(b, src, runtime.Options{})
			defer s.Close()
			conf := models.Config{}
			c.change(&conf)
			data := drawn{conf.Vocab, conf.Seq, conf.Batch, false}
			w := &timed{}
			at := Position{}
			var steps, runs, ratios []float64
			for range b.N {
				for turn := range c.turns {
					w.last, w.from, w.steps = time.Now(), at.Step+1, nil
					j := &Job{Session: s, Accumulate: 1, Batches: data, Watcher: w, From: at,
						Schedule: Schedule{Kind: "constant", LR: 1e-3, Steps: at.Step + c.block}}
					r, err := j.Run(context.Background())
					if err != nil {
						b.Fatal(err)
					}
					at = r.Position
					var plain []float64
					for range c.block {
						out, err := s.Step(context.Background())
						if err != nil {
							b.Fatal(err)
						}
						plain = append(plain, out.Seconds)
					}
					at.Runs = s.Progress().Runs
					if turn > 0 { // the first is a warm-up
						steps, runs = append(steps, median(w.steps)), append(runs, median(plain))
						ratios = append(ratios, median(w.steps)/median(plain))
					}
				}
			}
			cost := median(ratios) - 1
			b.ReportMetric(median(steps)*1e3, "ms/step")
			b.ReportMetric(median(runs)*1e3, "ms/run")
			b.ReportMetric(100*cost, "%cost")
			if cost > c.most {
				b.Errorf("a step of the loop takes %.2f%% more than a run", 100*cost)
			}
		})
	}
}

// timed notes how long steps took, but for the first of a turn, which waits for its
// batch, as none but the first of a training does.
type timed struct {
	recorder
	last  time.Time
	from  int64
	steps []float64
}

func (w *timed) Step(r Record) error {
	now := time.Now()
	if r.Step != w.from {
		w.steps = append(w.steps, now.Sub(w.last).Seconds())
	}
	w.last = now
	return nil
}

func median(x []float64) float64 {
	x = slices.Clone(x)
	slices.Sort(x)
	return x[len(x)/2]
}
