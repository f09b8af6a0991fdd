package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/report"
	remat "github.com/onnx-remat/remat/runtime"
)

func compareCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "compare", Usage: "runs the same feeds through each graph, interleaved, and compares", ArgsUsage: "A.onnx B.onnx …",
		Description: "The first graph is set against each other one: peak, time, overhead, the largest loss and\n" +
			"gradient difference. Exit code 1 when --tolerance is exceeded.\n\n" +
			"Example: remat compare train.onnx small.onnx --steps 5 --tolerance 1e-5 --html report.html",
		Flags: append(feedFlags(),
			&cli.Float64Flag{Name: "tolerance", Usage: "largest relative gradient and loss difference allowed, `X`"},
			&cli.BoolFlag{Name: "six", Usage: "make and compare the six standard variants of one forward model, beside it"},
			&cli.StringFlag{Name: "html", Usage: "writes the report to `F.html`"},
			&cli.StringFlag{Name: "png", Usage: "writes timeline and comparison to `F.png`"},
		),
		Action: func(c *cli.Context) error {
			paths := c.Args().Slice()
			if c.Bool("six") {
				if _, err := argument(c, "forward model"); err != nil {
					return err
				}
			} else if len(paths) < 2 {
				return fmt.Errorf("remat compare: want two model files or more, got %d; see remat compare --help", len(paths))
			}
			feeds, err := readFeeds(e, c)
			if err != nil {
				return err
			}
			o := compareOptions{steps: c.Int("steps"), html: c.String("html"), png: c.String("png")}
			if !c.IsSet("steps") {
				o.steps = 0
			}
			if c.IsSet("tolerance") {
				o.tolerance = c.Float64("tolerance")
				o.bounded = true
			}
			if c.Bool("six") {
				if paths, o.labels, err = makeSix(e, paths[0]); err != nil {
					return err
				}
			}
			doc, err := compareModels(e, paths, feeds, o)
			if doc != nil {
				if werr := writeComparison(e, doc, o); err == nil {
					err = werr
				}
			}
			return err
		},
	}
}

type compareOptions struct {
	// steps of each graph, the warm-up included; 0: as the pace says.
	steps     int
	pace      pace
	tolerance float64
	bounded   bool
	html, png string
	labels    []string
	title     string
	command   string
}

// compareModels opens every graph, runs the steps interleaved after one step
// of warm-up each, and compares first steps. A graph that fails is a row with
// its error; only when the first one fails there is nothing to compare with.
func compareModels(e *env, paths []string, feeds remat.Options, o compareOptions) (*report.Compare, error) {
	subjects := make([]*subject, len(paths))
	defer func() {
		for _, s := range subjects {
			s.close()
		}
	}()
	if err := e.checkDimsOf(paths...); err != nil {
		return nil, err
	}
	doc := &report.Compare{}
	for i, path := range paths {
		s, err := openSubject(e, path, feeds)
		if err != nil {
			if !outOfMemory(err) {
				return nil, err
			}
			s = &subject{path: path, run: &report.Run{Model: path, Error: report.Text(err.Error())}}
		}
		if i < len(o.labels) {
			s.run.Label = report.Text(o.labels[i])
		}
		subjects[i] = s
		doc.Models = append(doc.Models, s.run)
	}
	differences := compareFirst(subjects)
	e.measuring.Store(true)
	stopped := interleave(e, subjects, o.steps, o.pace)
	for _, s := range subjects {
		if s.session == nil || s.run.Error != "" || len(s.run.Steps) == 0 {
			continue
		}
		if err := s.finish(e, stopped == nil); err != nil {
			return nil, err
		}
		// All graphs share this process, so its peak says nothing of one.
		s.run.Memory.RSSPeakBytes = nil
	}
	if stopped != nil {
		return doc, stopped
	}
	return doc, pairUp(doc, subjects, differences, o)
}

// outOfMemory reports an error that is a result: the variant does not fit.
func outOfMemory(err error) bool {
	text := strings.ToLower(err.Error())
	return strings.Contains(text, "out of memory") || strings.Contains(text, "failed to allocate") ||
		strings.Contains(text, "bad_alloc") || strings.Contains(text, "available memory")
}

// A pace says how many steps there are where none are asked for: the fewest,
// then more up to the most while all graphs together have taken less time than
// enough.
type pace struct {
	fewest, most int
	enough       time.Duration
}

// onePass is compare's: one step of warm-up, and measured ones.
var onePass = pace{fewest: 2, most: 6, enough: 20 * time.Second}

// interleave runs step after step through all graphs in turn, beginning with
// another one each time, so that none always runs after the same other.
func interleave(e *env, subjects []*subject, steps int, p pace) error {
	if p == (pace{}) {
		p = onePass
	}
	total := max(steps, onePass.fewest)
	if steps == 0 {
		total = p.most
	}
	bar := e.progress(total*len(subjects), "steps")
	defer bar.Finish()
	start := time.Now()
	for i := 0; i < total; i++ {
		for k := range subjects {
			s := subjects[(i+k)%len(subjects)]
			if s.session == nil || s.run.Error != "" {
				continue
			}
			if err := s.step(e); err != nil {
				if !outOfMemory(err) {
					return err
				}
				s.run.Error = report.Text(err.Error())
			}
			s.session.Release() // the next graph needs the room
			bar.Add(1)
		}
		took := time.Since(start)
		if steps == 0 && i+1 >= p.fewest && took+took/time.Duration(i+1) > p.enough {
			break
		}
	}
	return nil
}

// pairUp sets the first graph against each other one.
func pairUp(doc *report.Compare, subjects []*subject, differences []report.Difference, o compareOptions) error {
	a := subjects[0]
	if a.run.Error != "" {
		return &checkError{fmt.Errorf("%s: %s", filepath.Base(a.path), a.run.Error)}
	}
	var failed error
	for i, b := range subjects[1:] {
		var d report.Difference
		if b.run.Error == "" {
			d = differences[i+1]
			if same := curves(a, b, &d); d.BitIdentical != nil {
				same = same && *d.BitIdentical
				d.BitIdentical = &same
			}
			if o.bounded {
				d = within(d, o.tolerance)
				if !*d.WithinTolerance && failed == nil {
					failed = &checkError{fmt.Errorf("%s differs from %s by more than --tolerance %g", filepath.Base(b.path), filepath.Base(a.path), o.tolerance)}
				}
			}
		}
		doc.Pairs = append(doc.Pairs, report.NewPair(a.run, b.run, d))
	}
	return failed
}

func within(d report.Difference, tolerance float64) report.Difference {
	t := report.Float(tolerance)
	ok := true
	for _, x := range []*report.Float{d.Loss, d.RelativeGradient} {
		if x != nil && !(float64(*x) <= tolerance) { // NaN is not within
			ok = false
		}
	}
	d.Tolerance, d.WithinTolerance = &t, &ok
	return d
}

// compareFirst keeps what the first graph returns in its first step, and
// compares with it what each other one returns in its own, while that lasts: no
// more than one copy is held. The differences are there after the first steps.
func compareFirst(subjects []*subject) []report.Difference {
	differences := make([]report.Difference, len(subjects))
	var kept []remat.Output
	loss := subjects[0].roles.Loss
	subjects[0].visit = func(outputs []remat.Output) {
		for _, o := range outputs {
			o.Data = bytes.Clone(o.Data)
			kept = append(kept, o)
		}
	}
	for i, s := range subjects[1:] {
		s.visit = func(outputs []remat.Output) { differences[i+1] = difference(kept, outputs, loss) }
	}
	return differences
}

// difference compares the outputs that both graphs have.
func difference(a, b []remat.Output, loss string) report.Difference {
	outB := map[string]remat.Output{}
	for _, o := range b {
		outB[o.Name] = o
	}
	identical, any := true, false
	var d report.Difference
	for _, x := range a {
		y, ok := outB[x.Name]
		if !ok || x.Err != nil || y.Err != nil {
			continue
		}
		any = true
		if x.Type == y.Type && bytes.Equal(x.Data, y.Data) {
			zero(&d, x.Name == loss)
			continue
		}
		identical = false
		u, err1 := x.Float64s()
		v, err2 := y.Float64s()
		if err1 != nil || err2 != nil || len(u) != len(v) {
			continue
		}
		if x.Name == loss && len(u) == 1 {
			raise(&d.Loss, apart(u[0], v[0]))
			continue
		}
		raise(&d.Gradient, largest(u, v))
		raise(&d.RelativeGradient, relative(u, v))
	}
	if any {
		d.BitIdentical = &identical
	}
	return d
}

// zero notes that one output is the same.
func zero(d *report.Difference, loss bool) {
	if loss {
		raise(&d.Loss, 0)
		return
	}
	raise(&d.Gradient, 0)
	raise(&d.RelativeGradient, 0)
}

// curves compares the scalar outputs of all steps, raises the difference of the
// loss to the largest, and reports whether they are the same.
func curves(a, b *subject, d *report.Difference) bool {
	same := true
	for i := range min(len(a.run.Steps), len(b.run.Steps)) {
		x, y := a.run.Steps[i].Outputs, b.run.Steps[i].Outputs
		for name, u := range x {
			v, ok := y[name]
			if !ok {
				continue
			}
			by := apart(float64(u), float64(v))
			same = same && by == 0
			if name == a.roles.Loss {
				raise(&d.Loss, by)
			}
		}
	}
	return same
}

func raise(to **report.Float, x float64) {
	if *to == nil || x > float64(**to) || math.IsNaN(x) {
		f := report.Float(x)
		*to = &f
	}
}

// apart is |x-y|, and 0 where both are the same infinity or both no number.
func apart(x, y float64) float64 {
	if x == y || math.IsNaN(x) && math.IsNaN(y) {
		return 0
	}
	return math.Abs(x - y)
}

func largest(u, v []float64) float64 {
	most := 0.0
	for i := range u {
		if d := apart(u[i], v[i]); d > most || math.IsNaN(d) {
			most = d
		}
	}
	return most
}

// relative is the largest difference as a share of the tensor's own largest
// magnitude.
func relative(u, v []float64) float64 {
	scale := 0.0
	for i := range u {
		scale = max(scale, math.Abs(u[i]))
	}
	most := largest(u, v)
	if most == 0 {
		return 0
	}
	if scale == 0 {
		return math.Inf(1)
	}
	return most / scale
}

// writeComparison prints the document and writes the pictures.
func writeComparison(e *env, doc *report.Compare, o compareOptions) error {
	if o.html != "" {
		page := &report.Page{Title: o.title, Command: o.command, Facts: machineFacts(e), Compare: doc}
		if page.Command == "" {
			page.Command = "remat compare"
		}
		if page.Title == "" {
			page.Title = "Comparison"
		}
		if err := onnx.ReplaceFile(o.html, func(f *os.File) error { return page.HTML(f) }); err != nil {
			return err
		}
	}
	if o.png != "" {
		if err := onnx.ReplaceFile(o.png, func(f *os.File) error { return doc.OverviewPNG(f) }); err != nil {
			return err
		}
	}
	if !e.json {
		return doc.Text(e.stdout)
	}
	return report.WriteJSON(e.stdout, doc.Brief())
}
