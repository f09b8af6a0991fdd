package report

// The charts of the page. go-echarts builds each one's options in Go; the
// page holds them as JSON, and page.js adds what JSON cannot hold: colours of
// the light or dark theme (a color "--name" is a CSS variable), axis labels
// with units, and tooltips made of DOM nodes, so that a name never becomes
// markup.

import (
	"math"
	"slices"

	"github.com/go-echarts/go-echarts/v2/charts"
	"github.com/go-echarts/go-echarts/v2/opts"

	"github.com/onnx-remat/remat/internal/units"
)

// chart is one picture of the page, as page.js reads it.
type chart struct {
	ID      string `json:"id"`
	Title   string `json:"-"`
	Caption string `json:"-"`
	// Height in pixels.
	Height int `json:"-"`
	// X and Y say what the axes measure: bytes, seconds, share, count, name.
	X string `json:"x"`
	Y string `json:"y"`
	// XName and YName are what stands beside an axis whose unit says too little.
	XName string `json:"xname,omitempty"`
	YName string `json:"yname,omitempty"`
	// Max is the largest value of the axis of bytes, for round binary ticks.
	Max int64 `json:"max,omitempty"`
	// Tip chooses the tooltip.
	Tip    string         `json:"tip"`
	Option map[string]any `json:"option"`
	Live   *liveHints     `json:"live,omitempty"`
}

// rect is what line, bar and scatter charts of go-echarts have in common.
type rect interface {
	Validate()
	JSON() map[string]any
}

func options(c rect) map[string]any {
	c.Validate()
	o := c.JSON()
	// Page and theme own these.
	for _, k := range []string{"title", "toolbox", "color", "legend", "tooltip"} {
		delete(o, k)
	}
	return o
}

// maxVariantColors is how many variant colours page.css has.
const maxVariantColors = 8

func variantColor(i int) string { return "--v" + itoa(i%maxVariantColors) }

func categoryColor(c Category) string { return "--c-" + string(c) }

// charts lists the pictures of a comparison; one without data is left out.
func (c *Compare) charts() []chart {
	all := c.timelineCharts()
	all = append(all, c.peakChart(), c.timeChart(), c.phasesChart(), c.lossChart(), c.tradeChart())
	for i, m := range c.Models {
		if m.Plan != nil {
			name := c.names()[i]
			all = append(all, layersChart("plan-"+itoa(i), name, m.Plan), paretoChart("pareto-"+itoa(i), name, m.Plan.Pareto))
		}
	}
	return withData(all)
}

// withData leaves out the charts that have none.
func withData(all []chart) []chart {
	return slices.DeleteFunc(all, func(x chart) bool { return x.Option == nil })
}

// view is where the page puts a chart, and what it says of it.
func (x *chart) view(wide bool) chartView {
	return chartView{ID: x.ID, Title: x.Title, Caption: x.Caption, Height: x.Height, Wide: wide}
}

// horizontal makes a bar chart with the names on the vertical axis, the first
// on top.
func horizontal(names []string) *charts.Bar {
	b := charts.NewBar()
	b.SetGlobalOptions(
		charts.WithXAxisOpts(opts.XAxis{Type: "value"}),
		charts.WithYAxisOpts(opts.YAxis{Type: "category", Inverse: opts.Bool(true), Data: names}),
	)
	return b
}

// series adds a series with data of any shape.
func series(b *charts.RectChart, name, kind string, data any, set func(*charts.SingleSeries)) {
	s := charts.SingleSeries{Name: name, Type: kind, Data: data}
	if set != nil {
		set(&s)
	}
	b.MultiSeries = append(b.MultiSeries, s)
}

// peakChart stacks the categories at the peak, one bar for each variant, with
// a mark where the prediction is.
func (c *Compare) peakChart() chart {
	names := c.names()
	b := horizontal(names)
	bars := map[Category][]any{}
	undivided, predicted := make([]any, len(names)), [][]any{}
	var most int64
	for i, m := range c.Models {
		sizes, rest := m.peakSizes()
		for _, k := range AllCategories {
			bars[k] = append(bars[k], sizes.Of(k))
		}
		undivided[i] = rest
		most = max(most, sizes.Total()+rest)
		if p := m.Memory.predictedTotal(); p != nil {
			predicted = append(predicted, []any{*p, names[i]})
			most = max(most, *p)
		}
	}
	for _, k := range AllCategories {
		if anyPositive(bars[k]) {
			series(&b.RectChart, categoryName(k), "bar", bars[k], stacked(categoryColor(k)))
		}
	}
	if anyPositive(undivided) {
		series(&b.RectChart, "live peak", "bar", undivided, stacked(categoryColor(Activations)))
	}
	series(&b.RectChart, "figure", "scatter", c.figures(func(m *Run) (float64, string) {
		sizes, rest := m.peakSizes()
		n := sizes.Total() + rest
		at := n
		if p := m.Memory.predictedTotal(); p != nil {
			at = max(n, *p)
		}
		return float64(at), units.Bytes(n)
	}), nil)
	if len(predicted) > 0 {
		series(&b.RectChart, "predicted", "scatter", predicted, func(s *charts.SingleSeries) {
			s.Symbol, s.SymbolSize, s.Color = "diamond", 11, "--ink"
		})
	}
	if most == 0 {
		return chart{}
	}
	return chart{ID: "peak", Title: "Peak of the step", Height: 110 + 46*len(names), X: "bytes", Y: "name", Max: most, Tip: "bar", Option: options(b),
		Caption: "Total bytes at the peak by category; the diamond is the prediction."}
}

// figures are the texts beside bars: at says where on the axis, and what; an empty
// place is none.
func (c *Compare) figures(at func(*Run) (float64, string)) []map[string]any {
	figures := []map[string]any{}
	names := c.names()
	for i, m := range c.Models {
		if x, text := at(m); x > 0 {
			figures = append(figures, map[string]any{"value": []any{x, names[i]}, "name": text})
		}
	}
	return figures
}

// peakSizes is the peak by category; without a timeline the live peak is not
// divided and returned as the rest.
func (r *Run) peakSizes() (Sizes, int64) {
	if r.Peak != nil {
		return r.Peak.Sizes, 0
	}
	if r.Memory.LivePeakBytes == nil {
		return Sizes{}, 0
	}
	s := Sizes{Parameters: r.Memory.ParameterBytes, State: r.Memory.StateBytes, Feeds: r.Memory.FeedBytes}
	if r.Memory.SessionBytes != nil {
		s.Session = *r.Memory.SessionBytes
	}
	return s, *r.Memory.LivePeakBytes
}

func stacked(color string) func(*charts.SingleSeries) {
	return func(s *charts.SingleSeries) { s.Stack, s.Color, s.BarMaxWidth = "bytes", color, "26" }
}

func anyPositive(values []any) bool {
	return slices.ContainsFunc(values, func(v any) bool {
		n, ok := v.(int64)
		return ok && n > 0
	})
}

// timeChart draws the median step of each variant and its quartiles.
func (c *Compare) timeChart() chart {
	names := c.names()
	b := horizontal(names)
	bars := make([]any, len(names))
	some := false
	for i, m := range c.Models {
		if x := m.MedianSeconds(); !math.IsNaN(x) {
			bars[i] = map[string]any{"value": x, "itemStyle": map[string]any{"color": variantColor(i)}}
			some = true
		}
	}
	if !some {
		return chart{}
	}
	series(&b.RectChart, "median step", "bar", bars, func(s *charts.SingleSeries) { s.BarMaxWidth = "26" })
	for i, m := range c.Models {
		if s := m.StepSeconds; s != nil {
			series(&b.RectChart, "quartiles", "line", [][]any{{s.Quartile, names[i]}, {s.Upper, names[i]}}, whisker)
		}
	}
	series(&b.RectChart, "figure", "scatter", c.figures(func(m *Run) (float64, string) {
		x := m.MedianSeconds()
		if s := m.StepSeconds; s != nil {
			return max(x, s.Upper), units.Seconds(x)
		}
		return x, units.Seconds(x)
	}), nil)
	return chart{ID: "time", Title: "Time of a step", Height: 80 + 46*len(names), X: "seconds", Y: "name", Tip: "bar", Option: options(b),
		Caption: "Median; the line spans the quartiles."}
}

func whisker(s *charts.SingleSeries) {
	s.Symbol, s.SymbolSize, s.Color = "rect", []int{2, 10}, "--ink"
	s.LineStyle = &opts.LineStyle{Width: 1.5}
}

// phasesChart sets the moments of a step side by side.
func (c *Compare) phasesChart() chart {
	b := charts.NewBar()
	moments, of := c.shownMoments()
	b.SetXAxis(moments)
	names := c.names()
	var most int64
	for i, m := range c.Models {
		p := m.Phases
		if p == nil {
			continue
		}
		var data []any
		for _, at := range of {
			n := at(p)
			if n == nil {
				data = append(data, nil)
				continue
			}
			data = append(data, *n)
			most = max(most, *n)
		}
		series(&b.RectChart, names[i], "bar", data, func(s *charts.SingleSeries) { s.Color, s.BarMaxWidth = variantColor(i), "34" })
	}
	if most == 0 {
		return chart{}
	}
	return chart{ID: "phases", Title: "Moments of the step", Height: 300, X: "name", Y: "bytes", Max: most, Tip: "bar", Option: options(b),
		Caption: "Total bytes at these moments; the peak is in the backward pass."}
}

// lossChart draws the loss over the steps; equal curves stay visible because
// each later one is finer.
func (c *Compare) lossChart() chart {
	l := charts.NewLine()
	l.SetGlobalOptions(charts.WithXAxisOpts(opts.XAxis{Type: "value", Min: 1, MinInterval: 1}), charts.WithYAxisOpts(opts.YAxis{Type: "value", Scale: opts.Bool(true)}))
	names := c.names()
	some := false
	for i, m := range c.Models {
		var data [][]any
		for step, x := range m.Losses() {
			if !math.IsNaN(x) && !math.IsInf(x, 0) {
				data = append(data, []any{step + 1, x})
			}
		}
		if len(data) < 2 {
			continue
		}
		some = true
		series(&l.RectChart, names[i], "line", data, func(s *charts.SingleSeries) {
			s.Color, s.ShowSymbol = variantColor(i), opts.Bool(len(data) <= 20)
			s.LineStyle = lossStyle(i)
		})
	}
	if !some {
		return chart{}
	}
	return chart{ID: "loss", Title: "Loss", Height: 300, X: "count", Y: "number", Tip: "loss", Option: options(l),
		Caption: "Loss of every step, on the same feeds. Where curves are equal, the later one is drawn finer, on top."}
}

// lossStyle makes the first curve a broad pale band and each later one finer.
func lossStyle(i int) *opts.LineStyle {
	styles := []opts.LineStyle{
		{Width: 9, Opacity: opts.Float(0.4)}, {Width: 4.5, Opacity: opts.Float(0.65)},
		{Width: 1.75}, {Width: 1.75, Type: "dashed"}, {Width: 1.75, Type: "dotted"},
	}
	return &styles[min(i, len(styles)-1)]
}

// tradeChart sets the saving of each variant against its overhead.
func (c *Compare) tradeChart() chart {
	s := charts.NewScatter()
	s.SetGlobalOptions(charts.WithXAxisOpts(opts.XAxis{Type: "value"}), charts.WithYAxisOpts(opts.YAxis{Type: "value"}))
	names := c.names()
	some := false
	for i := range c.Models {
		p := c.pairOf(i)
		if p == nil || p.Saving == nil || p.Overhead == nil {
			continue
		}
		some = true
		series(&s.RectChart, names[i], "scatter", [][]any{{*p.Overhead, *p.Saving}}, func(s *charts.SingleSeries) {
			s.Color, s.SymbolSize = variantColor(i), 16
		})
	}
	if !some {
		return chart{}
	}
	return chart{ID: "trade", Title: "Saving against overhead", Height: 300, X: "share", Y: "share", XName: "overhead", YName: "saving", Tip: "trade", Option: options(s),
		Caption: "Up is less memory (live peak), left is less time, both against " + names[0] + "."}
}

// layersChart draws the plan over the layers: what each keeps and what it
// makes again; a triangle marks a layer whose output is a boundary.
func layersChart(id, name string, p *Plan) chart {
	if len(p.Layers) == 0 {
		return chart{}
	}
	b := charts.NewBar()
	var layers []string
	var kept, again []int64
	var boundaries [][]any
	var most int64
	for i, l := range p.Layers {
		layers = append(layers, elide(textOr(l.Layer), 40))
		kept, again = append(kept, l.KeptBytes), append(again, l.RecomputedBytes)
		sum := l.KeptBytes + l.RecomputedBytes
		most = max(most, sum)
		if l.Boundary {
			boundaries = append(boundaries, []any{i, sum})
		}
	}
	b.SetXAxis(layers)
	series(&b.RectChart, "kept", "bar", kept, stacked("--kept"))
	series(&b.RectChart, "recomputed", "bar", again, stacked("--again"))
	if len(boundaries) > 0 {
		series(&b.RectChart, "boundary", "scatter", boundaries, func(s *charts.SingleSeries) {
			s.Symbol, s.SymbolSize, s.Color = "triangle", 8, "--ink"
		})
	}
	return chart{ID: id, Title: "Plan by layer: " + name, Height: 300, X: "name", Y: "bytes", Max: most, Tip: "bar", Option: options(b),
		Caption: "Forward values that backward needs, by layer, kept or recomputed. A triangle marks a layer whose output is a boundary."}
}

// paretoChart draws peak against overhead of all plans that were tried.
func paretoChart(id, name string, points []ParetoPoint) chart {
	if len(points) == 0 {
		return chart{}
	}
	s := charts.NewScatter()
	s.SetGlobalOptions(charts.WithXAxisOpts(opts.XAxis{Type: "value"}), charts.WithYAxisOpts(opts.YAxis{Type: "value"}))
	var most int64
	var best, dominated []any
	for _, p := range points {
		most = max(most, p.PeakBytes)
		d := map[string]any{"name": elide(textOr(p.Strategy), 40), "value": []any{p.Overhead, p.PeakBytes}}
		if p.Dominated {
			dominated = append(dominated, d)
		} else {
			best = append(best, d)
		}
	}
	front := func(s *charts.SingleSeries) { s.Color, s.SymbolSize = "--v1", 11 }
	series(&s.RectChart, "best", "scatter", best, front)
	series(&s.RectChart, "dominated", "scatter", dominated, func(s *charts.SingleSeries) { s.Color, s.SymbolSize = "--v0", 8 })
	return chart{ID: id, Title: "Plans: peak against overhead: " + name, Height: 300, X: "share", Y: "bytes", XName: "overhead", YName: "live peak", Max: most, Tip: "pareto", Option: options(s),
		Caption: "Live peak against recomputed FLOPs of every plan tried; a plan is dominated if another is at least as good in both."}
}
