package report

// The moments of a step that people quote:
//
//	before    forward's   after     backward's   after      after
//	forward   peak        forward   peak         backward   the update
//	─┬──────────┬───────────┬──────────┬────────────┬──────────┬─▶
//
// What forward keeps for backward is what it adds to the bytes before it.
//
// Weakness: an update that runs in backward is part of it; then "after the update" is
// the end of the step.

import (
	"errors"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/onnx-remat/remat/internal/units"
)

// Phases are total bytes at the moments; nil where the step has no such phase.
type Phases struct {
	BeforeForward int64  `json:"before_forward_bytes"`
	ForwardPeak   *int64 `json:"forward_peak_bytes"`
	AfterForward  *int64 `json:"after_forward_bytes"`
	// KeptByForward is what waits for backward: AfterForward less BeforeForward.
	KeptByForward *int64 `json:"kept_by_forward_bytes"`
	BackwardPeak  *int64 `json:"backward_peak_bytes"`
	AfterBackward *int64 `json:"after_backward_bytes"`
	AfterUpdate   *int64 `json:"after_update_bytes"`
}

// moments are the moments in order, by their names.
var moments = []struct {
	name string
	of   func(*Phases) *int64
}{
	{"before forward", func(p *Phases) *int64 { return &p.BeforeForward }},
	{"forward peak", func(p *Phases) *int64 { return p.ForwardPeak }},
	{"after forward", func(p *Phases) *int64 { return p.AfterForward }},
	{"backward peak", func(p *Phases) *int64 { return p.BackwardPeak }},
	{"after backward", func(p *Phases) *int64 { return p.AfterBackward }},
	{"after update", func(p *Phases) *int64 { return p.AfterUpdate }},
}

// Phases reads the moments from the events; nil where no event says in which phase it
// happened.
func (t *Timeline) Phases() *Phases {
	p := &Phases{BeforeForward: t.Base.Total()}
	marked, forward := false, true
	last := p.BeforeForward
	most := func(to **int64, n int64) {
		if *to == nil || n > **to {
			*to = new(n)
		}
	}
	updates := t.Updates
	t.walk(func(i int, live Sizes, _ map[int]LiveValue) {
		phase, total := t.Events[i].Phase, live.Total()
		marked = marked || phase != ""
		if forward && (phase == Backward || phase == Update) {
			forward = false
			p.AfterForward = new(last)
		}
		switch phase {
		case Forward:
			most(&p.ForwardPeak, total)
		case Backward:
			most(&p.BackwardPeak, total)
			p.AfterBackward = new(total)
		case Update:
			updates = true
		}
		last = total
	})
	if !marked {
		return nil
	}
	if forward {
		p.AfterForward = new(last)
	}
	if updates {
		p.AfterUpdate = new(last)
	}
	p.KeptByForward = new(*p.AfterForward - p.BeforeForward)
	return p
}

func (p *Phases) table() Table {
	t := Table{Title: "over the step", Columns: []string{"", ">total"}}
	for _, m := range moments {
		t.add(m.name, BytesOr(m.of(p)))
		if m.name == "after forward" {
			t.add("kept by forward for backward", BytesOr(p.KeptByForward))
		}
	}
	return t
}

// phasesTable sets the moments of all variants side by side, with what forward keeps
// as a share of what the first one's keeps.
func (c *Compare) phasesTable() Table {
	var columns []string
	for _, m := range moments {
		columns = append(columns, ">"+m.name)
	}
	columns = append(columns, ">kept by forward", ">of the first's")
	return c.perVariant("over the step, total", columns, func(_ int, m *Run, pair *Pair) []string {
		cells := slices.Repeat([]string{none}, len(columns))
		p := m.Phases
		if p == nil {
			return cells
		}
		for i, moment := range moments {
			cells[i] = BytesOr(moment.of(p))
		}
		cells[len(moments)] = BytesOr(p.KeptByForward)
		if pair != nil {
			cells[len(moments)+1] = floatOr(pair.KeptShare, units.Percent)
		}
		return cells
	})
}

// keptShare is what b's forward keeps as a share of what a's does; nil where a's keeps
// nothing.
func keptShare(a, b *Phases) *Float {
	if a == nil || b == nil || a.KeptByForward == nil || b.KeptByForward == nil || *a.KeptByForward <= 0 {
		return nil
	}
	return new(Float(float64(*b.KeptByForward) / float64(*a.KeptByForward)))
}

// shownMoments are those that one of the models has.
func (c *Compare) shownMoments() (names []string, of []func(*Phases) *int64) {
	for _, m := range moments {
		for _, r := range c.Models {
			if r.Phases != nil && m.of(r.Phases) != nil {
				names, of = append(names, m.name), append(of, m.of)
				break
			}
		}
	}
	return names, of
}

// momentsPlot draws a bar for each moment and variant.
func (c *Compare) momentsPlot() (*plot.Plot, error) {
	names, of := c.shownMoments()
	if len(names) == 0 {
		return nil, errors.New("comparison picture: no run has moments")
	}
	p := newPlot(c.titled("Moments of the step"))
	grid(p, false, true)
	width := vg.Points(min(14, 60/float64(len(c.Models))))
	var most int64
	variants := c.namesWithin(26)
	for i, m := range c.Models {
		if m.Phases == nil {
			continue
		}
		values := make(plotter.Values, len(of))
		for k, at := range of {
			if n := at(m.Phases); n != nil {
				values[k] = float64(*n)
				most = max(most, *n)
			}
		}
		b, err := plotter.NewBarChart(values, width)
		if err != nil {
			return nil, err
		}
		b.Color, b.LineStyle.Width = inks[i%len(inks)], 0
		b.Offset = width * vg.Length(float64(i)-float64(len(c.Models)-1)/2)
		p.Add(b)
		p.Legend.Add(variants[i], b)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max = -0.6, float64(len(names))-0.4
	p.Y.Min, p.Y.Max = 0, float64(most)*(1.15+0.06*float64(len(c.Models)))
	p.Y.Tick.Marker = binaryTicks(4)
	p.Legend.Top, p.Legend.Left = true, true
	return p, nil
}

// Load is the resident size of the process, in bytes, as a graph is made ready: at the
// start of the program, with the file mapped, with ONNX Runtime's session, and with what
// is fed.
type Load struct {
	Start   int64 `json:"start_rss_bytes"`
	Mapped  int64 `json:"mapped_rss_bytes"`
	Session int64 `json:"session_rss_bytes"`
	Feeds   int64 `json:"feeds_rss_bytes"`
}

func (l *Load) table() Table {
	t := Table{Title: "resident, as it was made ready", Columns: []string{"", ">process", ">added"}}
	before := int64(0)
	for _, s := range []struct {
		name string
		n    int64
	}{{"program started", l.Start}, {"file mapped", l.Mapped}, {"session made", l.Session}, {"inputs fed", l.Feeds}} {
		added := none
		if before > 0 {
			added = differenceOf(new(s.n), new(before))
			if s.n == before {
				added = units.Bytes(0)
			}
		}
		t.add(s.name, units.Bytes(s.n), added)
		before = s.n
	}
	return t
}
