package report

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/go-echarts/go-echarts/v2/charts"
	"github.com/go-echarts/go-echarts/v2/opts"

	"github.com/onnx-remat/remat/internal/units"
)

// pointBudget bounds the points of all timelines of a page together, so that
// a page stays small; a single timeline gets at least minPoints.
const (
	pointBudget = 5400
	minPoints   = 500
	maxPoints   = 1500
)

// A tooltip lists hintBuffers live buffers, their names cut to hintName runes.
const (
	hintBuffers = 6
	hintName    = 52
)

// liveHints is what all series of a timeline share: X, the place of each point
// on the axis, and what the tooltip says about it. Names are indexes into
// Names; Buffers rows are value, bytes, category, node, layer;
// Points rows are node, layer, then indexes of the largest live buffers.
type liveHints struct {
	X       []float64 `json:"x"`
	Names   []string  `json:"names"`
	Buffers [][]int64 `json:"buffers"`
	Points  [][]int   `json:"points"`
	names   map[string]int
	buffers map[[5]int64]int
}

func (h *liveHints) name(s string) int {
	s = elide(textOr(s), hintName)
	if i, ok := h.names[s]; ok {
		return i
	}
	h.names[s] = len(h.Names)
	h.Names = append(h.Names, s)
	return h.names[s]
}

func (h *liveHints) buffer(v LiveValue) int {
	key := [5]int64{int64(h.name(v.Value)), v.Bytes, int64(h.name(categoryName(v.Category))), int64(h.name(v.Node)), int64(h.name(string(v.Layer)))}
	if i, ok := h.buffers[key]; ok {
		return i
	}
	h.buffers[key] = len(h.Buffers)
	h.Buffers = append(h.Buffers, key[:])
	return h.buffers[key]
}

// hints collects what is live at the given points.
func (t *Timeline) hints(points []Point) *liveHints {
	h := &liveHints{names: map[string]int{}, buffers: map[[5]int64]int{}}
	next := 0
	t.walk(func(i int, _ Sizes, buffers map[int]LiveValue) {
		if next == len(points) || points[next].Event != i {
			return
		}
		next++
		e := t.Events[i]
		row := []int{h.name(e.Node), h.name(string(e.Layer))}
		for _, v := range largest(buffers, hintBuffers) {
			row = append(row, h.buffer(v))
		}
		h.Points = append(h.Points, row)
	})
	return h
}

// largest are the n largest buffers, largest first.
func largest(buffers map[int]LiveValue, n int) []LiveValue {
	all := slices.Collect(maps.Values(buffers))
	slices.SortFunc(all, func(a, b LiveValue) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Value, b.Value), cmp.Compare(a.Node, b.Node))
	})
	return all[:min(n, len(all))]
}

// timed says whether the events have times; else the axis is the share of the
// step's events.
func (t *Timeline) timed() bool {
	return len(t.Events) > 0 && t.Events[len(t.Events)-1].Seconds > 0
}

// x is the place of an event on the axis: seconds or share.
func (t *Timeline) x(event int, timed bool) float64 {
	if timed {
		return t.Events[event].Seconds
	}
	return float64(event+1) / float64(len(t.Events))
}

// traced are the variants that have a timeline, and the one scale of all.
type traced struct {
	index    []int
	points   [][]Point
	timed    bool
	maxX     float64
	maxBytes int64
}

func (c *Compare) traced() traced {
	tr := traced{timed: true}
	for i, m := range c.Models {
		if m.Timeline != nil && len(m.Timeline.Events) > 0 {
			tr.index = append(tr.index, i)
			tr.timed = tr.timed && m.Timeline.timed()
		}
	}
	for _, i := range tr.index {
		t := c.Models[i].Timeline
		points := thin(t.Points(), min(maxPoints, max(minPoints, pointBudget/len(tr.index))))
		tr.points = append(tr.points, points)
		tr.maxX = max(tr.maxX, t.x(len(t.Events)-1, tr.timed))
		for _, p := range points {
			tr.maxBytes = max(tr.maxBytes, p.Live.Total())
		}
	}
	return tr
}

// timelineCharts are all totals on one axis, and every variant stacked by
// category, all at the same scale.
func (c *Compare) timelineCharts() []chart {
	tr := c.traced()
	if len(tr.index) == 0 {
		return nil
	}
	var all []chart
	if len(tr.index) > 1 {
		all = append(all, c.overlayChart(tr))
	}
	for k := range tr.index {
		all = append(all, c.stackChart(tr, k))
	}
	return all
}

// round leaves a 100,000th of the axis, far less than a pixel: fewer digits.
func (tr traced) round(x float64) float64 {
	if tr.maxX <= 0 {
		return x
	}
	unit := math.Pow(10, 5-math.Ceil(math.Log10(tr.maxX)))
	return math.Round(x*unit) / unit
}

func (tr traced) unit() string {
	if tr.timed {
		return "seconds"
	}
	return "share"
}

// lines makes an empty line chart on the common time axis.
func (tr traced) lines() *charts.Line {
	l := charts.NewLine()
	l.SetGlobalOptions(
		charts.WithXAxisOpts(opts.XAxis{Type: "value", Min: 0, Max: tr.maxX}),
		charts.WithYAxisOpts(opts.YAxis{Type: "value"}),
	)
	return l
}

func (c *Compare) overlayChart(tr traced) chart {
	l := tr.lines()
	names := c.names()
	for k, i := range tr.index {
		t := c.Models[i].Timeline
		data := make([][2]float64, len(tr.points[k]))
		for j, p := range tr.points[k] {
			data[j] = [2]float64{tr.round(t.x(p.Event, tr.timed)), float64(p.Live.Total())}
		}
		mark := t.peakMark(tr, "", c.crowd(tr, k))
		series(&l.RectChart, names[i], "line", data, func(s *charts.SingleSeries) {
			s.Color, s.ShowSymbol, s.Step = variantColor(i), opts.Bool(false), "end"
			s.LineStyle = &opts.LineStyle{Width: 1.75}
			s.MarkPoints = mark
		})
	}
	return chart{ID: "timeline", Title: "Memory over the step", Height: 380, X: tr.unit(), Y: "bytes", Max: tr.maxBytes, Tip: "overlay", Option: options(l),
		Caption: "Total bytes: parameters, state, feeds, session, and the step's allocations. Dots mark the peaks." + c.covered(tr)}
}

// covered says which lines lie under a later one, all the way.
func (c *Compare) covered(tr traced) string {
	text, names := "", c.names()
	for k, i := range tr.index {
		if top := c.over(tr, k); top != "" {
			text += " " + names[i] + " lies under " + top + ": they are the same."
		}
	}
	return text
}

// over is the name of the last line that is the same as the k-th, "" for none.
func (c *Compare) over(tr traced, k int) string {
	for j := len(tr.index) - 1; j > k; j-- {
		if sameCourse(c.Models[tr.index[k]].Timeline, c.Models[tr.index[j]].Timeline, tr.timed) {
			return c.names()[tr.index[j]]
		}
	}
	return ""
}

// sameCourse reports two timelines of the same sizes at the same places.
func sameCourse(a, b *Timeline, timed bool) bool {
	if a.Base.Total() != b.Base.Total() || len(a.Events) != len(b.Events) {
		return false
	}
	for i := range a.Events {
		if a.Events[i].Bytes != b.Events[i].Bytes || a.x(i, timed) != b.x(i, timed) {
			return false
		}
	}
	return true
}

func (c *Compare) stackChart(tr traced, k int) chart {
	l := tr.lines()
	i, points := tr.index[k], tr.points[k]
	t := c.Models[i].Timeline
	for _, category := range AllCategories {
		data := make([]int64, len(points))
		used := false
		for j, p := range points {
			data[j] = p.Live.Of(category)
			used = used || data[j] != 0
		}
		if !used {
			continue
		}
		series(&l.RectChart, categoryName(category), "line", data, func(s *charts.SingleSeries) {
			s.Color, s.ShowSymbol, s.Step = categoryColor(category), opts.Bool(false), "end"
			s.LineStyle = &opts.LineStyle{Width: 0.5}
			s.AreaStyle = &opts.AreaStyle{Opacity: opts.Float(1)}
		})
	}
	name := c.names()[i]
	peak := t.Peak()
	hints := t.hints(points)
	for _, p := range points {
		hints.X = append(hints.X, tr.round(t.x(p.Event, tr.timed)))
	}
	series(&l.RectChart, "peak", "line", [][2]float64{{t.x(peak.Event, tr.timed), float64(peak.TotalBytes)}}, func(s *charts.SingleSeries) {
		s.Color, s.ShowSymbol, s.Symbol = "--ink", opts.Bool(false), "none"
		s.MarkPoints = t.peakMark(tr, "peak ", 0)
	})
	return chart{ID: "timeline-" + itoa(i), Title: name, Height: 320, X: tr.unit(), Y: "bytes", Max: tr.maxBytes, Tip: "live",
		Option: options(l), Live: hints, Caption: "Peak: " + units.Bytes(peak.TotalBytes) + " at " + elide(peak.place(), 120) + "."}
}

// peakAt is the place of the k-th peak on the axes.
func (c *Compare) peakAt(tr traced, k int) (x, y float64) {
	t := c.Models[tr.index[k]].Timeline
	peak := t.Peak()
	return t.x(peak.Event, tr.timed), float64(peak.TotalBytes)
}

// crowd counts the higher peaks so near to the k-th that their labels would
// lie on its own; one of the same height counts twice, as below is no place.
func (c *Compare) crowd(tr traced, k int) int {
	near := 0
	x, y := c.peakAt(tr, k)
	for j := range tr.index {
		ox, oy := c.peakAt(tr, j)
		higher := oy > y || oy == y && j < k
		if j == k || !higher || math.Abs(ox-x) > 0.2*tr.maxX || oy-y > 0.14*float64(tr.maxBytes) {
			continue
		}
		near++
		if oy-y < 0.02*float64(tr.maxBytes) {
			near++
		}
	}
	return near
}

// peakMark is the dot at the peak, labelled on the side that has room: below
// when one higher peak is near, not at all when more are.
func (t *Timeline) peakMark(tr traced, word string, crowd int) *opts.MarkPoints {
	peak := t.Peak()
	x := t.x(peak.Event, tr.timed)
	label := opts.Label{Show: opts.Bool(crowd < 2), Position: "top"}
	switch {
	case crowd > 0:
		label.Position = "bottom"
		if x > 0.9*tr.maxX {
			label.Align = "right"
		}
	case x < 0.2*tr.maxX:
		label.Position = "right"
	case x > 0.8*tr.maxX:
		label.Position = "left"
	}
	return &opts.MarkPoints{
		Data: []any{opts.MarkPointNameCoordItem{
			Name: "peak", Coordinate: []any{x, peak.TotalBytes}, Value: word + units.Bytes(peak.TotalBytes),
			Symbol: "circle", SymbolSize: 8, Label: &label,
		}},
	}
}
