package report

// Pictures for papers, by gonum/plot: white ground, one scale, the variants'
// colours of the page. Axes of bytes have ticks at powers of two.

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/onnx-remat/remat/internal/units"
)

// Sizes of the pictures: a text column's width at 200 dots per inch.
const (
	pngWidth  = 7 * vg.Inch
	pngHeight = 3.4 * vg.Inch
	pngDPI    = 200
)

// inks are the variants' colours, the light theme's --v0 to --v7.
var inks = []color.Color{
	rgb(0x6b7486), rgb(0x2f6fdb), rgb(0x12977c), rgb(0xdd7a1f), rgb(0x8a56cf), rgb(0xcf3f74), rgb(0x8c8a1a), rgb(0x1b8fb0),
}

// fills are the categories' colours, in the order of AllCategories.
var fills = []color.Color{
	rgb(0x98a2b3), rgb(0xb9a3dc), rgb(0xd4c9a8), rgb(0xbdb5ad), rgb(0xe6954a), rgb(0x4fb3a5), rgb(0x3f7fdb), rgb(0xd9536f),
}

func rgb(x uint32) color.Color {
	return color.RGBA{R: uint8(x >> 16), G: uint8(x >> 8), B: uint8(x), A: 255}
}

var ink, pale = rgb(0x1b2130), rgb(0xdfe3ea)

// TimelinePNG draws the total of every variant that has a timeline over the
// step, with a dot at each peak.
func (c *Compare) TimelinePNG(w io.Writer) error {
	p, err := c.timelinePlot()
	if err != nil {
		return err
	}
	return writePlots(w, pngHeight, p)
}

// ComparePNG draws the peak by category and the time of a step, side by side.
func (c *Compare) ComparePNG(w io.Writer) error {
	peak, err := c.peakPlot()
	if err != nil {
		return err
	}
	time, err := c.timePlot()
	if err != nil && c.Rehearsed() {
		return writePlots(w, c.barsHeight(), peak)
	}
	if err != nil {
		return err
	}
	return writePlots(w, c.barsHeight(), peak, time)
}

// OverviewPNG draws all of that in one picture: the timeline, where a run has
// one, above peak and time.
func (c *Compare) OverviewPNG(w io.Writer) error {
	line, err := c.timelinePlot()
	if err != nil {
		return c.ComparePNG(w)
	}
	peak, err := c.peakPlot()
	if err != nil {
		return err
	}
	time, err := c.timePlot()
	lowerPlots := []*plot.Plot{peak, time}
	if err != nil && c.Rehearsed() {
		lowerPlots = lowerPlots[:1]
	} else if err != nil {
		return writePlots(w, pngHeight, line)
	}
	lower := c.barsHeight()
	moments, err := c.momentsPlot()
	under := vg.Length(0) // the moments, at the bottom
	if err == nil {
		under = pngHeight * 3 / 4
	}
	img := vgimg.NewWith(vgimg.UseWH(pngWidth, pngHeight+lower+under), vgimg.UseDPI(pngDPI))
	dc := draw.New(img)
	drawPlots(draw.Crop(dc, 0, 0, lower+under, 0), line)
	drawPlots(draw.Crop(dc, 0, 0, under, -pngHeight), lowerPlots...)
	if moments != nil {
		drawPlots(draw.Crop(dc, 0, 0, 0, -pngHeight-lower), moments)
	}
	return encode(w, img)
}

// titled says of a picture of a rehearsal that it is one.
func (c *Compare) titled(title string) string {
	if c.Rehearsed() {
		return title + " (rehearsed: " + NoNumbers + ")"
	}
	return title
}

// barsHeight leaves room for one bar each and the legend.
func (c *Compare) barsHeight() vg.Length {
	return 1.3*vg.Inch + vg.Length(len(c.Models))*0.38*vg.Inch
}

// ParetoPNG draws peak against overhead of plans, each strategy named once.
func ParetoPNG(w io.Writer, points []ParetoPoint) error {
	p, err := paretoPlot(points)
	if err != nil {
		return err
	}
	return writePlots(w, pngHeight, p)
}

// writePlots puts the plots side by side into one picture.
func writePlots(w io.Writer, height vg.Length, plots ...*plot.Plot) error {
	img := vgimg.NewWith(vgimg.UseWH(pngWidth, height), vgimg.UseDPI(pngDPI))
	drawPlots(draw.New(img), plots...)
	return encode(w, img)
}

func drawPlots(dc draw.Canvas, plots ...*plot.Plot) {
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: 16, PadTop: 6, PadBottom: 4, PadLeft: 4, PadRight: 12}
	for i, c := range plot.Align([][]*plot.Plot{plots}, tiles, dc)[0] {
		plots[i].Draw(c)
	}
}

func encode(w io.Writer, img *vgimg.Canvas) error {
	if _, err := (vgimg.PngCanvas{Canvas: img}).WriteTo(w); err != nil {
		return fmt.Errorf("write png: %w", err)
	}
	return nil
}

// newPlot is a plot in the common style.
func newPlot(title string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Title.TextStyle.Font.Size = 10
	p.Title.TextStyle.Font.Variant = "Sans"
	p.Title.Padding = 6
	p.Title.TextStyle.Color = ink
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.LineStyle.Color, a.Tick.LineStyle.Color = pale, pale
		a.Tick.Label.Font.Size, a.Label.TextStyle.Font.Size = 8, 8
		a.Tick.Label.Font.Variant, a.Label.TextStyle.Font.Variant = "Sans", "Sans"
		a.Tick.Label.Color, a.Label.TextStyle.Color = ink, ink
		a.Padding = 2
	}
	p.Legend.TextStyle.Font = font.Font{Typeface: "Liberation", Variant: "Sans", Size: 8}
	p.Legend.TextStyle.Color = ink
	p.Legend.ThumbnailWidth = 10
	p.Legend.Padding = 2
	return p
}

// grid draws pale lines at the ticks of one or both axes.
func grid(p *plot.Plot, vertical, horizontal bool) {
	g := plotter.NewGrid()
	g.Vertical.Color, g.Horizontal.Color = nil, nil
	if vertical {
		g.Vertical.Color = pale
	}
	if horizontal {
		g.Horizontal.Color = pale
	}
	p.Add(g)
}

// binaryTicks puts at most that many ticks, and zero, at multiples of a power of two.
type binaryTicks float64

func (most binaryTicks) Ticks(_, high float64) []plot.Tick {
	var ticks []plot.Tick
	step := math.Exp2(math.Ceil(math.Log2(max(high, float64(most)) / float64(most))))
	for x := 0.0; x <= high; x += step {
		ticks = append(ticks, plot.Tick{Value: x, Label: shortBytes(x)})
	}
	return ticks
}

// shortBytes writes a tick: no decimals where there are none.
func shortBytes(x float64) string {
	if x == 0 {
		return "0"
	}
	unit, names := 0, append([]string{"B"}, units.Binary...)
	for x >= 1024 && unit+1 < len(names) {
		x /= 1024
		unit++
	}
	return units.TrimZeros(fmt.Sprintf("%.2f", x)) + " " + names[unit]
}

// labelled puts at most that many ticks at 1, 2 or 5 times a power of ten, written
// with a unit.
type labelled struct {
	write func(float64) string
	most  float64
}

func (l labelled) Ticks(low, high float64) []plot.Tick {
	if !(high > low) || math.IsInf(high-low, 0) {
		return nil
	}
	power := math.Pow(10, math.Floor(math.Log10((high-low)/(l.most-1))))
	step := 10 * power
	for _, f := range []float64{1, 2, 5} {
		if f*power*(l.most-1) >= high-low {
			step = f * power
			break
		}
	}
	var ticks []plot.Tick
	for n := math.Ceil(low/step - 1e-9); n*step <= high*(1+1e-9); n++ {
		ticks = append(ticks, plot.Tick{Value: n * step, Label: l.write(n * step)})
	}
	return ticks
}

func shortShare(x float64) string {
	return units.Number(units.NoMinusZero(math.Round(x*1000)/10, 0.05)) + " %"
}

func shortSeconds(x float64) string {
	if x == 0 {
		return "0"
	}
	if math.Abs(x) < 1 {
		return units.Number(math.Round(x*1e6)/1e3) + " ms"
	}
	return units.Number(math.Round(x*1e3)/1e3) + " s"
}
