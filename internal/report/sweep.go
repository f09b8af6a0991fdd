package report

// A sweep: predictions of one step at many sizes, and what follows of them.
//
//	points ──▶ fit      base + slope × samples, by least squares, for each strategy
//	       ──▶ largest  batch (or sequence) that keeps the limit, for each strategy

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/onnx-remat/remat/internal/units"
)

// SweepPoint is one size and strategy.
type SweepPoint struct {
	Model      string `json:"model"`
	Batch      int64  `json:"batch"`
	Seq        *int64 `json:"seq"`
	Layers     *int64 `json:"layers"`
	Precision  string `json:"precision"`
	Accumulate int64  `json:"accumulate"`
	Strategy   string `json:"strategy"`
	// LivePeak and TotalPeak are predicted bytes, of the file that the strategy leads to;
	// Total adds what the arena reserves beside. The limit bounds TotalPeak, as
	// --memory-limit does. Nil where nothing could be predicted.
	LivePeak  *int64 `json:"live_peak_bytes"`
	TotalPeak *int64 `json:"total_peak_bytes"`
	Total     *int64 `json:"total_bytes"`
	// PerSample is TotalPeak over the samples of a step.
	PerSample *int64 `json:"bytes_per_sample"`
	// Relative is TotalPeak as a share of the first point's with this strategy.
	Relative *Float `json:"relative"`
	// Overhead is work that is done again, as a share of FLOPs.
	Overhead *Float `json:"overhead"`
	// TheorySaving is 1 - 1/√L.
	TheorySaving *Float `json:"theory_saving,omitempty"`
	Saving       *Float `json:"saving"`
	// Seconds and MeasuredLivePeak are nil unless the point ran.
	Seconds          *float64 `json:"step_seconds"`
	MeasuredLivePeak *int64   `json:"measured_live_peak_bytes"`
	Fits             bool     `json:"fits"`
	Outcome          string   `json:"outcome"`
	Why              Text     `json:"why"`
}

// Outcomes of a point.
const (
	SweepOK     = "ok"
	SweepOOM    = "oom"
	SweepFailed = "failed"
)

// SweepLargest is the largest batch or sequence that keeps the limit; 0: none does.
type SweepLargest struct {
	Model    string `json:"model"`
	Strategy string `json:"strategy"`
	Batch    int64  `json:"batch"`
	Seq      *int64 `json:"seq"`
	// Over is what was searched: batch or seq. Others is the rest of the sizes.
	Over   string `json:"over"`
	Others Text   `json:"others"`
	// Total is what that takes, in bytes, and Next the least size that does not fit.
	Total    *int64 `json:"total_peak_bytes"`
	Next     *int64 `json:"next_bytes"`
	Searched int    `json:"predictions"`
}

// SweepFit is the line through the points of a strategy.
type SweepFit struct {
	Model    string `json:"model"`
	Strategy string `json:"strategy"`
	Over     string `json:"over"`
	Others   Text   `json:"others"`
	Base     int64  `json:"base_bytes"`
	Slope    int64  `json:"bytes_per_sample"`
	R2       Float  `json:"r2"`
}

// Sweep is the document of `sweep --json`.
type Sweep struct {
	Limit   *int64         `json:"limit_bytes"`
	Points  []SweepPoint   `json:"points"`
	Largest []SweepLargest `json:"largest"`
	Fit     []SweepFit     `json:"fit"`
	// Over is what grows along the chart: batch, seq or layers.
	Over string `json:"over"`
}

// At is the place of a point on the axis that the sweep is over.
func (s *Sweep) At(p *SweepPoint) int64 {
	switch {
	case s.Over == "seq" && p.Seq != nil:
		return *p.Seq
	case s.Over == "layers" && p.Layers != nil:
		return *p.Layers
	}
	return p.Batch
}

// Key names the curve that a point is on: all but the size that grows. Where a size is
// the same all over, it is left out.
func (s *Sweep) Key(p *SweepPoint) (strategy, others string) {
	differs := func(of func(*SweepPoint) string) bool {
		return slices.ContainsFunc(s.Points, func(q SweepPoint) bool { return of(&q) != of(&s.Points[0]) })
	}
	for _, d := range []struct {
		over, format string
		of           func(*SweepPoint) string
	}{
		{"model", "%s", func(p *SweepPoint) string { return p.Model }},
		{"batch", "batch %s", func(p *SweepPoint) string { return fmt.Sprint(p.Batch) }},
		{"seq", "seq %s", func(p *SweepPoint) string { return numberOr(p.Seq) }},
		{"layers", "%s layers", func(p *SweepPoint) string { return numberOr(p.Layers) }},
		{"precision", "%s", func(p *SweepPoint) string { return p.Precision }},
		{"accumulate", "accumulate %s", func(p *SweepPoint) string { return fmt.Sprint(p.Accumulate) }},
	} {
		if d.over != s.Over && differs(d.of) {
			if others != "" {
				others += ", "
			}
			others += fmt.Sprintf(d.format, d.of(p))
		}
	}
	return p.Strategy, others
}

func numberOr(n *int64) string {
	if n == nil {
		return none
	}
	return fmt.Sprint(*n)
}

// A SweepCurve is the points of one key, by growing size.
type SweepCurve struct {
	Strategy, Others string
	Points           []*SweepPoint
}

// Curves are the sweep's points by key, in the order in which they were given.
func (s *Sweep) Curves() []SweepCurve {
	var list []SweepCurve
	for i := range s.Points {
		strategy, others := s.Key(&s.Points[i])
		at := slices.IndexFunc(list, func(c SweepCurve) bool { return c.Strategy == strategy && c.Others == others })
		if at < 0 {
			at = len(list)
			list = append(list, SweepCurve{Strategy: strategy, Others: others})
		}
		list[at].Points = append(list[at].Points, &s.Points[i])
	}
	for _, c := range list {
		slices.SortStableFunc(c.Points, func(a, b *SweepPoint) int { return int(s.At(a) - s.At(b)) })
	}
	return list
}

func (c *SweepCurve) name() string {
	if c.Others == "" {
		return c.Strategy
	}
	return c.Strategy + ", " + c.Others
}

// Finish fills in what follows of the points: relative figures and fits.
func (s *Sweep) Finish() {
	for _, c := range s.Curves() {
		var first *int64
		var xs, ys []float64
		for _, p := range c.Points {
			if p.TotalPeak == nil {
				continue
			}
			first = cmp.Or(first, p.TotalPeak)
			p.Relative = new(Float(float64(*p.TotalPeak) / float64(*first)))
			xs, ys = append(xs, float64(s.At(p))), append(ys, float64(*p.TotalPeak))
		}
		if base, slope, r2, ok := fitLine(xs, ys); ok {
			s.Fit = append(s.Fit, SweepFit{Model: c.Points[0].Model, Strategy: c.Strategy, Over: s.Over, Others: Text(c.Others),
				Base: int64(math.Round(base)), Slope: int64(math.Round(slope)), R2: Float(r2)})
		}
	}
}

// fitLine is the line of least squares; ok is false for fewer than two places.
func fitLine(xs, ys []float64) (base, slope, r2 float64, ok bool) {
	if len(xs) < 2 || slices.Min(xs) == slices.Max(xs) {
		return 0, 0, 0, false
	}
	n, mx, my := float64(len(xs)), 0.0, 0.0
	for i := range xs {
		mx, my = mx+xs[i]/n, my+ys[i]/n
	}
	var sxx, sxy, syy float64
	for i := range xs {
		dx, dy := xs[i]-mx, ys[i]-my
		sxx, sxy, syy = sxx+dx*dx, sxy+dx*dy, syy+dy*dy
	}
	slope = sxy / sxx
	if r2 = 1; syy > 0 {
		r2 = sxy * sxy / (sxx * syy)
	}
	return my - slope*mx, slope, r2, true
}

// Text writes the sweep as a person reads it.
func (s *Sweep) Text(w io.Writer) error { return writeTables(w, s.tables()...) }

func (s *Sweep) tables() []Table {
	var list []Table
	for _, t := range []Table{s.pointsTable(), s.fitTable(), s.largestTable()} {
		if len(t.Rows) > 0 {
			list = append(list, t.compact())
		}
	}
	return list
}

func (s *Sweep) pointsTable() Table {
	t := Table{Title: "predicted", Columns: []string{"strategy", ">" + s.Over, "sizes", ">live peak", ">total", ">of the first", ">a sample", ">saved", ">theory", ">work again", ">measured", ">difference", ">step", "~outcome"}}
	if s.Limit != nil {
		t.Title += ", limit " + units.Bytes(*s.Limit)
	}
	for _, c := range s.Curves() {
		for _, p := range c.Points {
			outcome := p.Outcome
			if p.Why != "" {
				outcome += ": " + string(p.Why)
			}
			seconds := none
			if p.Seconds != nil {
				seconds = units.Seconds(*p.Seconds)
			}
			t.add(c.Strategy, fmt.Sprint(s.At(p)), textOr(c.Others), BytesOr(p.LivePeak), BytesOr(p.TotalPeak), floatOr(p.Relative, times),
				BytesOr(p.PerSample), floatOr(p.Saving, units.Percent), floatOr(p.TheorySaving, units.Percent), floatOr(p.Overhead, units.Signed),
				BytesOr(p.MeasuredLivePeak), differenceOf(p.MeasuredLivePeak, p.LivePeak), seconds, outcome)
		}
	}
	return t
}

// times writes a factor.
func times(x float64) string { return fmt.Sprintf("%.2f ×", x) }

func (s *Sweep) fitTable() Table {
	t := Table{Title: "total = base + slope × " + s.Over, Columns: []string{"strategy", "sizes", ">base", ">slope", ">R²"}}
	for _, f := range s.Fit {
		t.add(f.Strategy, textOr(string(f.Others)), units.Bytes(f.Base), units.Bytes(f.Slope), fmt.Sprintf("%.4f", float64(f.R2)))
	}
	return t
}

func (s *Sweep) largestTable() Table {
	t := Table{Columns: []string{"strategy", "sizes", ">largest", ">takes", ">one more takes"}}
	for _, l := range s.Largest {
		t.Title = "largest " + l.Over + " within " + BytesOr(s.Limit)
		n := l.Batch
		if l.Over == "seq" && l.Seq != nil {
			n = *l.Seq
		}
		size := fmt.Sprint(n)
		if n == 0 {
			size = "none"
		}
		t.add(l.Strategy, textOr(string(l.Others)), size, BytesOr(l.Total), BytesOr(l.Next))
	}
	return t
}

// MarshalJSON writes empty lists as [].
func (s Sweep) MarshalJSON() ([]byte, error) {
	type plain Sweep
	p := plain(s)
	p.Points, p.Largest, p.Fit = list(p.Points), list(p.Largest), list(p.Fit)
	return json.Marshal(p)
}
