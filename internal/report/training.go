package report

// The page of a training run: curves over steps, what was decided before the first
// step, and the settings. A Training takes steps one by one and stays small, so a
// page can be made at any moment of a run of any length.

import (
	"cmp"
	"fmt"
	"io"
	"math"

	"github.com/onnx-remat/remat/internal/units"
)

// Training is what the page of a run shows.
type Training struct {
	Title string
	// Command is what was typed, for repeating it.
	Command string
	Facts   Facts
	// Steps is how many the run will have; 0: unknown.
	Steps int64
	// Every is how many steps apart the steps given to Step are; below 2: all are.
	Every int64
	// Decided are tables of what was chosen for the run, Settings its flags.
	Decided  []Table
	Settings Table
	// Counts is what a step's tokens are: tokens, labels or samples.
	Counts string
	// Outcome says how the run ended, "" while it goes on.
	Outcome string
	// Failed says that it did not end well.
	Failed bool

	last, skipped, tokens, timed int64
	seconds                      float64

	loss, rate, norm, scale, speed Curve
	live, reserved, resident       Curve
	overflows                      Curve // skipped steps so far
	validation, perplexity         Curve
}

// A TrainingStep is one step of the run: an update, or one that was skipped because
// a gradient overflowed. NaN is what is not known.
type TrainingStep struct {
	Step                     int64
	Loss, Rate, Norm         float64
	Tokens                   int64
	Seconds                  float64
	Live, Reserved, Resident int64 // bytes
	Scale                    float64
	Skipped                  bool
}

// Step adds a step.
func (t *Training) Step(s TrainingStep) {
	t.last = max(t.last, s.Step)
	t.loss.Add(s.Step, s.Loss)
	t.rate.Add(s.Step, s.Rate)
	t.norm.Add(s.Step, s.Norm)
	t.scale.Add(s.Step, s.Scale)
	t.live.addBytes(s.Step, s.Live)
	t.reserved.addBytes(s.Step, s.Reserved)
	t.resident.addBytes(s.Step, s.Resident)
	if s.Skipped {
		t.skipped++
	}
	t.overflows.Add(s.Step, float64(t.skipped))
	if s.Seconds > 0 {
		t.timed, t.tokens, t.seconds = t.timed+1, t.tokens+s.Tokens, t.seconds+s.Seconds
		if s.Tokens > 0 {
			t.speed.Add(s.Step, float64(s.Tokens)/s.Seconds)
		}
	}
}

// Validated adds a validation after a step; 0 is before the first.
func (t *Training) Validated(step int64, loss, perplexity float64) {
	t.validation.Add(max(step, 1), loss)
	t.perplexity.Add(max(step, 1), perplexity)
}

// HTML writes the page.
func (t *Training) HTML(w io.Writer) error {
	drawn := t.charts()
	view := pageView{Title: clean(t.Title), Command: clean(t.Command), Facts: t.Facts.clean(), Cards: t.cards()}
	curves := sectionView{Title: "Over the steps", Text: t.reading()}
	for _, d := range drawn {
		curves.Charts = append(curves.Charts, d.view(d.ID == "loss"))
	}
	if n := len(curves.Charts); n > 0 && n%2 == 0 { // the loss stands alone
		curves.Charts[n-1].Wide = true
	}
	if len(drawn) == 0 {
		curves.Text = "No step yet."
	}
	view.Sections = append(view.Sections, curves)
	if tables := viewTables(printable(t.Decided...)); len(tables) > 0 {
		view.Sections = append(view.Sections, sectionView{Title: "What was decided", Tables: tables,
			Text: "Before the first step, from the model, the memory and the flags."})
	}
	if tables := viewTables(printable(t.Settings)); len(tables) > 0 {
		view.Sections = append(view.Sections, sectionView{Title: "Settings", Tables: tables})
	}
	return view.write(w, drawn)
}

// printable are the tables with printable cells.
func printable(tables ...Table) []Table {
	var out []Table
	for _, t := range tables {
		rows := make([][]string, len(t.Rows))
		for i, r := range t.Rows {
			for _, c := range r {
				rows[i] = append(rows[i], clean(c))
			}
		}
		t.Title, t.Note, t.Rows = clean(t.Title), clean(t.Note), rows
		out = append(out, t)
	}
	return out
}

// reading says how the curves are to be read.
func (t *Training) reading() string {
	text := "Hover or tap for values; a name above a chart hides its curve."
	if t.Every > 1 {
		text += fmt.Sprintf(" Every %s step is logged, and those that were skipped.", ordinal(t.Every))
	}
	if t.loss.Thinned() {
		text += fmt.Sprintf(" %s steps are drawn as %d points of %d steps each: the line is their mean, the pale band reaches from the smallest to the largest.",
			units.Count(t.loss.Points), len(t.loss.buckets), t.loss.width)
	}
	return text
}

func ordinal(n int64) string {
	switch {
	case n%10 == 1 && n%100 != 11:
		return fmt.Sprintf("%dst", n)
	case n%10 == 2 && n%100 != 12:
		return fmt.Sprintf("%dnd", n)
	case n%10 == 3 && n%100 != 13:
		return fmt.Sprintf("%drd", n)
	}
	return fmt.Sprintf("%dth", n)
}

// cards are the figures to see first.
func (t *Training) cards() []cardView {
	var cards []cardView
	done := cardView{Name: "Steps", Big: fmt.Sprint(t.last), What: "still running", Color: "--v0", Failed: t.Failed}
	if t.Steps > 0 {
		done.What = fmt.Sprintf("of %d, still running", t.Steps)
	}
	if t.Outcome != "" {
		done.What = clean(t.Outcome)
	}
	if t.skipped > 0 {
		done.Lines = append(done.Lines, fmt.Sprintf("%d skipped: gradients overflowed", t.skipped))
	}
	cards = append(cards, done)
	if t.loss.Points > 0 {
		cards = append(cards, cardView{Name: "Loss", Big: lossText(t.loss.Last()), What: "at the last step", Color: "--v1",
			Lines: []string{"first " + lossText(t.loss.First()), "highest " + lossText(t.loss.Largest())}})
	}
	if t.validation.Points > 0 {
		cards = append(cards, cardView{Name: "Validation", Big: lossText(t.validation.Last()), What: "loss on the validation data", Color: "--v3",
			Lines: append(t.perplexityLines(), "lowest loss "+lossText(t.validation.least()))})
	}
	if t.seconds > 0 {
		c := cardView{Name: "Speed", Big: units.Seconds(t.seconds / float64(t.timed)), What: "a step, in the mean", Color: "--v2"}
		if t.tokens > 0 {
			c.Lines = []string{short(float64(t.tokens)/t.seconds) + " " + t.counts() + " a second"}
		}
		cards = append(cards, c)
	}
	if x := t.live.Largest(); !math.IsNaN(x) {
		c := cardView{Name: "Memory", Big: units.Bytes(int64(x)), What: "largest live peak of a step", Color: "--v4"}
		if r := t.resident.Largest(); !math.IsNaN(r) {
			c.Lines = append(c.Lines, "resident "+units.Bytes(int64(r)))
		}
		cards = append(cards, c)
	}
	return cards
}

// lossText writes a loss with as many digits behind the point as tell two steps apart.
func lossText(x float64) string {
	if math.IsNaN(x) || math.Abs(x) < 0.1 || math.Abs(x) >= 1000 {
		return short(x)
	}
	return fmt.Sprintf("%.3f", x)
}

// short writes a number with four digits, as cards have room for.
func short(x float64) string {
	if math.IsNaN(x) {
		return none
	}
	if a := math.Abs(x); a >= 10000 && a < 1<<53 {
		return units.Count(int64(x))
	}
	return fmt.Sprintf("%.4g", x)
}

// counts is what a step's tokens are.
func (t *Training) counts() string { return cmp.Or(t.Counts, "tokens") }

// HasPerplexity reports that e to the power of a loss says something, by what is counted of
// the data: not where that is samples, whose loss is no cross entropy of labels.
func HasPerplexity(counts string) bool { return counts != "samples" }

// perplexityLines has the last perplexity, where labels are counted.
func (t *Training) perplexityLines() []string {
	if !HasPerplexity(t.counts()) {
		return nil
	}
	return []string{"perplexity " + short(t.perplexity.Last())}
}
