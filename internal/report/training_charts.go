package report

import (
	"github.com/go-echarts/go-echarts/v2/charts"
	"github.com/go-echarts/go-echarts/v2/opts"
)

// rangeSuffix marks the series that draws the band of a thinned curve; page.js
// leaves it out of legends and tooltips.
const rangeSuffix = " range"

// A drawnCurve is a curve of a chart.
type drawnCurve struct {
	name, color string
	curve       *Curve
	dots        bool // few points, each to be seen
}

// charts lists the pictures of a run; one without data is left out.
func (t *Training) charts() []chart {
	all := []chart{
		curveChart("loss", "Loss", "number", "Of the batches trained on, and of the validation data.", 340,
			drawnCurve{name: "training", color: "--v1", curve: &t.loss}, drawnCurve{"validation", "--v3", &t.validation, true}),
		curveChart("rate", "Learning rate", "number", "Of each step, after warm-up and schedule.", 240, drawnCurve{name: "learning rate", color: "--v2", curve: &t.rate}),
		curveChart("norm", "Gradient norm", "number", "Of all gradients, before clipping.", 240, drawnCurve{name: "gradient norm", color: "--v5", curve: &t.norm}),
		curveChart("memory", "Memory", "bytes", "Live: the most that a step has allocated. Reserved: what the allocator holds. Resident: the whole process.", 280,
			drawnCurve{name: "live peak", color: "--v1", curve: &t.live}, drawnCurve{name: "reserved", color: "--v2", curve: &t.reserved},
			drawnCurve{name: "resident", color: "--v3", curve: &t.resident}),
		curveChart("speed", "Throughput", "number", "Counted of each step: "+t.counts()+" a second.", 280, drawnCurve{name: t.counts() + " a second", color: "--v4", curve: &t.speed}),
		curveChart("scale", "Loss scale", "number", "What the loss is multiplied by, so that gradients in half precision do not vanish.", 240,
			drawnCurve{name: "loss scale", color: "--v6", curve: &t.scale}),
	}
	if t.perplexity.Points > 1 && HasPerplexity(t.counts()) {
		all = append(all, curveChart("perplexity", "Perplexity", "number", "Of the validation data: e to the power of its loss.", 240, drawnCurve{"perplexity", "--v3", &t.perplexity, true}))
	}
	if t.skipped > 0 {
		all = append(all, curveChart("skipped", "Skipped steps", "count", "So far: steps without an update because a gradient overflowed.", 240,
			drawnCurve{name: "skipped so far", color: "--v5", curve: &t.overflows}))
	}
	return withData(all)
}

// curveChart draws curves over steps; y is what they measure.
func curveChart(id, title, y, caption string, height int, curves ...drawnCurve) chart {
	l := charts.NewLine()
	l.SetGlobalOptions(charts.WithXAxisOpts(opts.XAxis{Type: "value", Scale: opts.Bool(true), MinInterval: 1}),
		charts.WithYAxisOpts(opts.YAxis{Type: "value", Scale: opts.Bool(id == "loss" || id == "perplexity")}))
	var most float64
	for _, c := range curves {
		if c.curve.Points == 0 {
			continue
		}
		most = max(most, c.curve.Largest())
		if c.curve.Thinned() && y != "count" {
			series(&l.RectChart, c.name+rangeSuffix, "line", c.curve.band(), func(s *charts.SingleSeries) {
				s.Color, s.ShowSymbol = c.color, opts.Bool(false)
				s.LineStyle = &opts.LineStyle{Width: 1, Opacity: opts.Float(0.3)}
			})
		}
		data := c.curve.line(y == "count")
		series(&l.RectChart, c.name, "line", data, func(s *charts.SingleSeries) {
			s.Color, s.ShowSymbol = c.color, opts.Bool(len(data) == 1 || c.dots && len(data) <= 60)
			s.LineStyle = &opts.LineStyle{Width: 1.75}
		})
	}
	if len(l.MultiSeries) == 0 {
		return chart{}
	}
	return chart{ID: id, Title: title, Caption: caption, Height: height, X: "count", Y: y, Max: int64(most), Tip: "curve", Option: options(l)}
}

// line is the curve's points, [step, value] or, of several steps, [step, mean,
// smallest, largest, first step, last step]; ends is for a count so far, whose
// mean says nothing.
func (c *Curve) line(ends bool) [][]any {
	var data [][]any
	for _, b := range c.buckets {
		switch {
		case b.count == 1:
			data = append(data, []any{b.last, b.end})
		case ends:
			data = append(data, []any{b.last, b.end})
		default:
			data = append(data, []any{b.at(), b.mean(), b.least, b.up, b.first, b.last})
		}
	}
	return data
}

// band goes up and down from the smallest to the largest of each bucket, so that
// many buckets fill it.
func (c *Curve) band() [][]any {
	var data [][]any
	for i, b := range c.buckets {
		low, high := []any{b.at(), b.least}, []any{b.at(), b.up}
		if i%2 == 1 {
			low, high = high, low
		}
		data = append(data, low, high)
	}
	return data
}
