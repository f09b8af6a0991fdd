package report

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

// fixtureTraining is a run of so many steps: warm-up and cosine, a validation now
// and then, overflows, and memory that the allocator takes in the first steps.
func fixtureTraining(steps int64) *Training {
	t := &Training{
		Title: "Training gpt2.onnx", Command: "remat train gpt2.onnx --text book.txt --memory 8GiB -o out", Steps: max(steps, 300),
		Facts: Facts{{Key: "provider", Value: "cpu"}, {Key: "ONNX Runtime", Value: "1.31.1"}},
		Decided: []Table{{Title: "Memory", Columns: []string{"measure", ">live peak", ">work", "~because"},
			Rows: [][]string{{"update in backward", "1.23 GiB", "+0.0 %", "each gradient is used once"}, {"recomputation", "612.0 MiB", "+6.5 %", "the budget asks for it"}}}},
		Settings: Table{Columns: []string{"flag", "value"}, Rows: [][]string{{"lr", "0.0006"}, {"schedule", "cosine"}, {"text", "book.txt"}}},
	}
	for i := int64(1); i <= steps; i++ {
		x := float64(i) / float64(steps)
		noise := math.Sin(float64(i)*12.9898) * 0.15
		s := TrainingStep{Step: i, Loss: 3 + 8*math.Exp(-6*x) + noise, Rate: 6e-4 * min(1, 20*x) * (0.55 + 0.45*math.Cos(math.Pi*x)), Norm: 1 + 4*math.Exp(-9*x) + noise*noise,
			Tokens: 8192, Seconds: 1.2 + 0.1*noise, Live: 1 << 30, Reserved: 1<<30 + min(i, 3)<<26, Resident: 3<<29 + min(i, 5)<<25, Scale: 65536}
		if i%97 == 5 {
			s.Skipped, s.Norm, s.Scale = true, math.Inf(1), 131072
		}
		t.Step(s)
		if i%max(steps/10, 1) == 0 {
			t.Validated(i, 3.1+7.5*math.Exp(-6*x), math.Exp(3.1+7.5*math.Exp(-6*x)))
		}
	}
	return t
}

// A curve of any length takes the same room, and keeps the smallest, the largest
// and the sum of every step.
func TestCurve(t *testing.T) {
	for _, steps := range []int64{0, 1, 2, mostBuckets, mostBuckets + 1, 12345, 100_000} {
		var c Curve
		var sum, got float64
		var count int64
		for i := int64(1); i <= steps; i++ {
			x := math.Sin(float64(i)) * float64(i)
			sum += x
			c.Add(i, x)
		}
		c.Add(steps, math.NaN())
		c.Add(-1, 1)
		if steps > 1 {
			c.Add(steps/2, 1e9) // goes back: a log that was put together
		}
		least, up := math.Inf(1), math.Inf(-1)
		for i, b := range c.buckets {
			got, count = got+b.sum, count+b.count
			least, up = min(least, b.least), max(up, b.up)
			if b.first > b.last || b.count != b.last-b.first+1 || i > 0 && b.first != c.buckets[i-1].last+1 {
				t.Fatalf("%d steps: bucket %d is %+v", steps, i, b)
			}
		}
		if count != steps || c.Points != steps || math.Abs(got-sum) > 1e-6*math.Abs(sum)+1e-9 || len(c.buckets) > mostBuckets || steps > mostBuckets && len(c.buckets) < mostBuckets/2-1 {
			t.Errorf("%d steps: %d in %d buckets, sum %g of %g", steps, count, len(c.buckets), got, sum)
		}
		if steps > 0 && (c.Largest() != up || c.least() != least || c.First() != math.Sin(1) || c.Last() != math.Sin(float64(steps))*float64(steps)) {
			t.Errorf("%d steps: first %g last %g largest %g", steps, c.First(), c.Last(), c.Largest())
		}
		if c.Thinned() != (steps > mostBuckets) {
			t.Errorf("%d steps: thinned is %v", steps, c.Thinned())
		}
	}
}

func trainingPage(t *testing.T, run *Training) string {
	t.Helper()
	var b bytes.Buffer
	if err := run.HTML(&b); err != nil {
		t.Fatal(err)
	}
	elements(t, b.String())
	return b.String()
}

func TestTrainingPage(t *testing.T) {
	text := trainingPage(t, fixtureTraining(300))
	var ids []string
	for _, c := range chartData(t, text) {
		ids = append(ids, c["id"].(string))
	}
	for _, id := range []string{"loss", "rate", "norm", "memory", "speed", "perplexity", "scale", "skipped"} {
		if !slices.Contains(ids, id) || strings.Count(text, `id="chart-`+id+`"`) != 1 {
			t.Errorf("no place or no chart for %s; there are %v", id, ids)
		}
	}
	for _, want := range []string{"of 300, still running", "4 skipped", "perplexity 22.61", "1.00 GiB", "tokens a second", "each gradient is used once", "cosine"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if strings.Contains(text, "pale band") {
		t.Error("300 steps are said to be thinned out")
	}
	done := fixtureTraining(300)
	done.Outcome = "done"
	if text := trainingPage(t, done); strings.Contains(text, "still running") {
		t.Error("a run that ended is still running")
	}
}

// 100,000 steps are a page like any other, which says that it draws fewer points.
func TestTrainingPageOfManySteps(t *testing.T) {
	small, large := trainingPage(t, fixtureTraining(mostBuckets)), trainingPage(t, fixtureTraining(100_000))
	if len(large) > 2*len(small) || len(large) > 3<<20 {
		t.Errorf("%d bytes, against %d of %d steps", len(large), len(small), mostBuckets)
	}
	if !strings.Contains(large, "100 k steps are drawn as 391 points of 256 steps each") {
		t.Error("the page does not say that it was thinned out")
	}
}

// Names stay text, and a run without a step or with nothing finite is a page.
func TestTrainingPageHostile(t *testing.T) {
	run := fixtureTraining(3)
	run.Title, run.Command, run.Outcome = hostile, hostile, hostile
	run.Facts = Facts{{Key: hostile, Value: hostile}}
	run.Decided[0].Rows[0][0], run.Settings.Rows[0][1] = hostile, hostile
	text := trainingPage(t, run)
	if n := strings.Count(strings.ToLower(text), "<script"); n != 3 {
		t.Errorf("%d script elements, want 3", n)
	}
	if text := trainingPage(t, &Training{Title: "empty"}); !strings.Contains(text, "No step yet.") {
		t.Error("a run without a step does not say so")
	}
	odd := &Training{}
	odd.Step(TrainingStep{Step: 1, Loss: math.NaN(), Rate: math.Inf(1), Norm: math.NaN(), Scale: math.NaN(), Live: -1, Seconds: math.NaN()})
	odd.Validated(0, math.NaN(), math.Inf(1))
	trainingPage(t, odd)
}
