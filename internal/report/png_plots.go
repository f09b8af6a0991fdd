package report

import (
	"cmp"
	"errors"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/onnx-remat/remat/internal/units"
)

func (c *Compare) timelinePlot() (*plot.Plot, error) {
	tr := c.traced()
	if len(tr.index) == 0 {
		return nil, errors.New("timeline picture: no run has a timeline")
	}
	p := newPlot(c.titled("Memory over the step"))
	grid(p, false, true)
	names := c.names()
	for k, i := range tr.index {
		t, hue := c.Models[i].Timeline, inks[i%len(inks)]
		var line plotter.XYs
		for _, q := range tr.points[k] {
			line = append(line, plotter.XY{X: t.x(q.Event, tr.timed), Y: float64(q.Live.Total())})
		}
		l, err := plotter.NewLine(line)
		if err != nil {
			return nil, err
		}
		l.StepStyle, l.Color, l.Width = plotter.PostStep, hue, 1
		p.Add(l)
		name := names[i]
		if top := c.over(tr, k); top != "" {
			name += " (same as " + elide(top, 26) + ")"
		}
		p.Legend.Add(name, l)
		if err := c.addPeak(p, tr, k); err != nil {
			return nil, err
		}
	}
	p.Legend.Top, p.Legend.YOffs = true, 2
	p.X.Min, p.X.Max, p.Y.Min = 0, tr.maxX, 0
	// The legend stands above the highest peak.
	p.Y.Max = float64(tr.maxBytes) * (1.1 + 0.055*float64(len(tr.index)))
	p.Y.Tick.Marker = binaryTicks(6)
	p.X.Tick.Marker = labelled{shortShare, 8}
	p.X.Label.Text = "share of the step"
	if tr.timed {
		p.X.Tick.Marker, p.X.Label.Text = labelled{shortSeconds, 8}, "time"
	}
	return p, nil
}

// addPeak puts a dot and the size at the k-th peak.
func (c *Compare) addPeak(p *plot.Plot, tr traced, k int) error {
	x, y := c.peakAt(tr, k)
	at, hue := plotter.XYs{{X: x, Y: y}}, inks[tr.index[k]%len(inks)]
	if _, err := addDots(p, at, hue); err != nil {
		return err
	}
	crowd := c.crowd(tr, k)
	if crowd > 1 {
		return nil
	}
	label, err := plotter.NewLabels(plotter.XYLabels{XYs: at, Labels: []string{units.Bytes(int64(at[0].Y))}})
	if err != nil {
		return err
	}
	s := &label.TextStyle[0]
	s.Font.Size, s.Font.Variant, s.Color = 8, "Sans", ink
	s.XAlign, s.YAlign = draw.XCenter, draw.YBottom
	label.Offset.Y = 4
	if crowd == 1 {
		s.YAlign, label.Offset.Y = draw.YTop, -4
	}
	if at[0].X > 0.9*tr.maxX {
		s.XAlign = draw.XRight
	}
	if at[0].X < 0.1*tr.maxX {
		s.XAlign = draw.XLeft
	}
	p.Add(label)
	return nil
}

// addDots puts a dot at each place.
func addDots(p *plot.Plot, at plotter.XYs, hue color.Color) (*plotter.Scatter, error) {
	s, err := plotter.NewScatter(at)
	if err == nil {
		s.GlyphStyle = draw.GlyphStyle{Color: hue, Radius: 2.5, Shape: draw.CircleGlyph{}}
		p.Add(s)
	}
	return s, err
}

// rows reverses the variants: gonum counts from the bottom, readers from the
// top.
func (c *Compare) rows() ([]*Run, []string) {
	runs, names := slices.Clone(c.Models), c.namesWithin(26)
	slices.Reverse(runs)
	slices.Reverse(names)
	return runs, names
}

func (c *Compare) peakPlot() (*plot.Plot, error) {
	runs, names := c.rows()
	p := newPlot(c.titled("Peak of the step"))
	grid(p, true, false)
	var below *plotter.BarChart
	most, legend := 0.0, 0
	for _, r := range runs {
		s, rest := r.peakSizes()
		most = max(most, float64(s.Total()+rest))
	}
	// What is too thin to be seen is not named.
	stack := func(name string, fill color.Color, size func(*Run) int64) error {
		values := make(plotter.Values, len(runs))
		sum, widest := 0.0, 0.0
		for i, r := range runs {
			values[i] = float64(size(r))
			sum += values[i]
			widest = max(widest, values[i])
		}
		if sum == 0 {
			return nil
		}
		b, err := plotter.NewBarChart(values, 12)
		if err != nil {
			return err
		}
		b.Horizontal, b.Color, b.LineStyle.Width = true, fill, 0
		if below != nil {
			b.StackOn(below)
		}
		below = b
		p.Add(b)
		if widest > 0.005*most {
			p.Legend.Add(name, b)
			legend++
		}
		return nil
	}
	for i, k := range AllCategories {
		if err := stack(categoryName(k), fills[i], func(r *Run) int64 { s, _ := r.peakSizes(); return s.Of(k) }); err != nil {
			return nil, err
		}
	}
	if err := stack("live peak", fills[6], func(r *Run) int64 { _, rest := r.peakSizes(); return rest }); err != nil {
		return nil, err
	}
	if below == nil {
		return nil, errors.New("comparison picture: no run has a peak")
	}
	p.X.Min, p.X.Max = 0, most*1.2
	p.X.Tick.Marker = binaryTicks(4)
	if err := addFigures(p, runs, func(r *Run) (float64, string) {
		s, rest := r.peakSizes()
		return float64(s.Total() + rest), units.Bytes(s.Total() + rest)
	}); err != nil {
		return nil, err
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.6, float64(len(runs))-0.4
	// The legend stands above the bars.
	p.Legend.Top = true
	p.Y.Max += 0.42 * float64(legend)
	return p, nil
}

// addFigures writes at the end of each bar how long it is.
func addFigures(p *plot.Plot, runs []*Run, at func(*Run) (float64, string)) error {
	var l plotter.XYLabels
	for i, r := range runs {
		if x, text := at(r); x > 0 {
			l.XYs, l.Labels = append(l.XYs, plotter.XY{X: x, Y: float64(i)}), append(l.Labels, text)
		}
	}
	labels, err := plotter.NewLabels(l)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		s := &labels.TextStyle[i]
		s.Font.Size, s.Font.Variant, s.Color, s.YAlign = 8, "Sans", ink, draw.YCenter
	}
	labels.Offset.X = 4
	p.Add(labels)
	return nil
}

func (c *Compare) timePlot() (*plot.Plot, error) {
	runs, names := c.rows()
	end := func(r *Run) float64 { // of the bar, or of the line over the quartiles
		if s := r.StepSeconds; s != nil {
			return max(s.Median, s.Upper)
		}
		if x := r.MedianSeconds(); !math.IsNaN(x) {
			return x
		}
		return 0
	}
	p := newPlot("Time of a step")
	grid(p, true, false)
	timed, most := false, 0.0
	for i, r := range runs {
		median := r.MedianSeconds()
		if math.IsNaN(median) {
			continue
		}
		timed, most = true, max(most, end(r))
		b, err := plotter.NewBarChart(plotter.Values{median}, 12)
		if err != nil {
			return nil, err
		}
		b.Horizontal, b.XMin, b.Color, b.LineStyle.Width = true, float64(i), inks[(len(runs)-1-i)%len(inks)], 0
		p.Add(b)
		if s := r.StepSeconds; s != nil {
			l, err := plotter.NewLine(plotter.XYs{{X: s.Quartile, Y: float64(i)}, {X: s.Upper, Y: float64(i)}})
			if err != nil {
				return nil, err
			}
			l.Color, l.Width = ink, vg.Length(1.2)
			p.Add(l)
		}
	}
	if !timed {
		return nil, errors.New("comparison picture: no run has a step time")
	}
	p.X.Min, p.X.Max = 0, 1.2*most
	p.X.Tick.Marker = labelled{shortSeconds, 5}
	if err := addFigures(p, runs, func(r *Run) (float64, string) { return end(r), units.Seconds(r.MedianSeconds()) }); err != nil {
		return nil, err
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.6, float64(len(runs))-0.4
	return p, nil
}

func paretoPlot(points []ParetoPoint) (*plot.Plot, error) {
	p := newPlot("Peak against overhead")
	grid(p, true, true)
	var best, beaten plotter.XYs
	for _, q := range points {
		xy := plotter.XY{X: float64(q.Overhead), Y: float64(q.PeakBytes)}
		switch {
		case math.IsNaN(xy.X) || math.IsInf(xy.X, 0):
		case q.Dominated:
			beaten = append(beaten, xy)
		default:
			best = append(best, xy)
		}
	}
	if len(best) == 0 {
		return nil, errors.New("pareto picture: no plan to draw")
	}
	slices.SortFunc(best, func(a, b plotter.XY) int { return cmp.Compare(a.X, b.X) })
	front, err := plotter.NewLine(best)
	if err != nil {
		return nil, err
	}
	front.Color, front.Width, front.StepStyle = inks[1], 1, plotter.PostStep
	p.Add(front)
	for _, g := range []struct {
		at   plotter.XYs
		name string
		hue  color.Color
	}{{beaten, "dominated", inks[0]}, {best, "best", inks[1]}} {
		if len(g.at) == 0 {
			continue
		}
		s, err := addDots(p, g.at, g.hue)
		if err != nil {
			return nil, err
		}
		p.Legend.Add(g.name, s)
	}
	labels, err := plotter.NewLabels(strategyNames(points))
	if err != nil {
		return nil, err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font.Size, labels.TextStyle[i].Font.Variant = 8, "Sans"
	}
	labels.Offset = vg.Point{X: 4, Y: 4}
	p.Add(labels)
	p.Legend.Top = true
	p.X.Label.Text, p.Y.Label.Text = "recomputed FLOPs, share of the step", "live peak"
	p.X.Min = min(p.X.Min, 0)
	p.X.Max += 0.12 * (p.X.Max - p.X.Min)
	if p.X.Max <= p.X.Min {
		p.X.Max = p.X.Min + 0.1
	}
	p.Y.Min, p.Y.Max = 0, p.Y.Max*1.08
	p.Y.Tick.Marker, p.X.Tick.Marker = binaryTicks(4), labelled{shortShare, 8}
	return p, nil
}

// strategyNames names each strategy once, at the plan itself if that is its own, else
// at its plan of most overhead; those of one place share a line.
func strategyNames(points []ParetoPoint) plotter.XYLabels {
	at, chosen := map[string]plotter.XY{}, map[string]bool{}
	var order []string
	for _, q := range points {
		xy := plotter.XY{X: float64(q.Overhead), Y: float64(q.PeakBytes)}
		if math.IsNaN(xy.X) || math.IsInf(xy.X, 0) {
			continue
		}
		old, seen := at[q.Strategy]
		if !seen {
			order = append(order, q.Strategy)
		}
		if !seen || q.Chosen || xy.X > old.X && !chosen[q.Strategy] {
			at[q.Strategy], chosen[q.Strategy] = xy, q.Chosen
		}
	}
	var out plotter.XYLabels
	for _, strategy := range order {
		name := elide(clean(strategy), 30)
		if i := slices.Index(out.XYs, at[strategy]); i >= 0 {
			out.Labels[i] += ", " + name
			continue
		}
		out.XYs, out.Labels = append(out.XYs, at[strategy]), append(out.Labels, name)
	}
	return out
}
