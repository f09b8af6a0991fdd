package report

// A sweep as a picture and as a page: one chart, with the limit as a line.

import (
	"errors"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"

	"github.com/go-echarts/go-echarts/v2/charts"
	"github.com/go-echarts/go-echarts/v2/opts"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/onnx-remat/remat/internal/units"
)

// chart draws the total over the size that grows, a line for each curve, and the limit.
func (s *Sweep) chart() chart {
	l := charts.NewLine()
	l.SetGlobalOptions(charts.WithXAxisOpts(opts.XAxis{Type: "value", MinInterval: 1}), charts.WithYAxisOpts(opts.YAxis{Type: "value", Min: 0}))
	var most, left, right int64
	left = math.MaxInt64
	for i, c := range s.Curves() {
		var data [][]any
		for _, p := range c.Points {
			if p.TotalPeak != nil {
				x := s.At(p)
				data = append(data, []any{x, *p.TotalPeak})
				most, left, right = max(most, *p.TotalPeak), min(left, x), max(right, x)
			}
		}
		series(&l.RectChart, clean(c.name()), "line", data, func(s *charts.SingleSeries) {
			s.Color, s.ShowSymbol = variantColor(i), opts.Bool(true)
		})
	}
	if most == 0 {
		return chart{}
	}
	if s.Limit != nil && *s.Limit <= 4*most {
		most = max(most, *s.Limit)
		series(&l.RectChart, "limit "+units.Bytes(*s.Limit), "line", [][]any{{left, *s.Limit}, {right, *s.Limit}}, func(s *charts.SingleSeries) {
			s.Color, s.ShowSymbol = "--ink", opts.Bool(false)
			s.LineStyle = &opts.LineStyle{Width: 1.5, Type: "dashed"}
		})
	}
	return chart{ID: "sweep", Title: "Memory by " + s.Over, Height: 420, X: "count", Y: "bytes", XName: s.Over, Max: most, Tip: "sweep", Option: options(l),
		Caption: "All that a step takes: parameters, state, feeds, session and live peak. Predicted."}
}

// charts are the charts of the page.
func (s *Sweep) charts() []chart {
	if c := s.chart(); c.ID != "" {
		return []chart{c}
	}
	return nil
}

// PNG draws the chart.
func (s *Sweep) PNG(w io.Writer) error {
	p := newPlot("Memory by " + s.Over)
	grid(p, false, true)
	most := 0.0
	left, right := math.Inf(1), 0.0
	line := func(name string, xy plotter.XYs, hue color.Color, dots, dashed bool) error {
		l, err := plotter.NewLine(xy)
		if err != nil {
			return err
		}
		l.Color, l.Width = hue, vg.Points(1.6)
		if dashed {
			l.Dashes = []vg.Length{vg.Points(5), vg.Points(4)}
		}
		p.Add(l)
		p.Legend.Add(name, l)
		if dots {
			if _, err := addDots(p, xy, hue); err != nil {
				return err
			}
		}
		return nil
	}
	curves := s.Curves()
	var ticks []plot.Tick
	for i, c := range curves {
		var xy plotter.XYs
		for _, q := range c.Points {
			if q.TotalPeak != nil {
				x, y := float64(s.At(q)), float64(*q.TotalPeak)
				xy = append(xy, plotter.XY{X: x, Y: y})
				if i == 0 {
					ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprint(s.At(q))})
				}
				most, left, right = max(most, y), min(left, x), max(right, x)
			}
		}
		if len(xy) == 0 {
			continue
		}
		if err := line(clean(c.name()), xy, inks[i%len(inks)], true, false); err != nil {
			return err
		}
	}
	if most == 0 {
		return errors.New("sweep picture: no point was predicted")
	}
	if s.Limit != nil && float64(*s.Limit) <= 4*most {
		y := float64(*s.Limit)
		most = max(most, y)
		if err := line("limit "+units.Bytes(*s.Limit), plotter.XYs{{X: left, Y: y}, {X: right, Y: y}}, ink, false, true); err != nil {
			return err
		}
	}
	p.X.Min, p.X.Max = left, right
	if left == right {
		p.X.Min, p.X.Max = left-1, right+1
	}
	p.Y.Min, p.Y.Max = 0, most*(1.1+0.055*float64(len(curves)+1))
	p.Y.Tick.Marker = binaryTicks(6)
	p.X.Tick.Marker = plot.ConstantTicks(ticks)
	p.X.Label.Text = s.Over
	p.Legend.Top, p.Legend.Left = true, true
	return writePlots(w, pngHeight, p)
}

// cards say the largest size for each strategy, or how each curve grows.
func (s *Sweep) cards() []cardView {
	var cards []cardView
	for i, c := range s.Curves() {
		card := cardView{Name: clean(c.name()), Color: template.CSS(variantColor(i))}
		for _, l := range s.Largest {
			if l.Strategy != c.Strategy || string(l.Others) != c.Others {
				continue
			}
			n := l.Batch
			if l.Over == "seq" && l.Seq != nil {
				n = *l.Seq
			}
			card.Big, card.What = fmt.Sprint(n), "largest "+l.Over+" within "+BytesOr(s.Limit)
			card.Lines = append(card.Lines, "takes "+BytesOr(l.Total))
		}
		for _, f := range s.Fit {
			if f.Strategy != c.Strategy || string(f.Others) != c.Others {
				continue
			}
			line := units.Bytes(f.Base) + " and " + units.Bytes(f.Slope) + " for each " + s.Over
			if card.Big == "" {
				card.Big, card.What = units.Bytes(f.Slope), "for each "+s.Over
				line = "and " + units.Bytes(f.Base)
			}
			card.Lines = append(card.Lines, line)
		}
		if card.Big == "" && len(c.Points) > 0 {
			card.Big, card.What = BytesOr(c.Points[0].Total), "all that a step takes"
		}
		cards = append(cards, card)
	}
	return cards
}

// sections are the chart and the tables.
func (s *Sweep) sections(drawn []chart) []sectionView {
	v := sectionView{Title: "Sweep"}
	for _, d := range drawn {
		v.Charts = append(v.Charts, d.view(true))
	}
	for _, t := range s.tables() {
		v.Tables = append(v.Tables, viewTable(t))
	}
	return []sectionView{v}
}
