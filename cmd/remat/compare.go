package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

func compareCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "compare", Usage: "runs the same feeds through each graph, interleaved, and compares", ArgsUsage: "A.onnx B.onnx …",
		Description: "Compares the first graph with each other one: peak, time, overhead, and the largest loss and\n" +
			"gradient difference. Exit code 1 if --tolerance is exceeded.\n\n" +
			"Example: remat compare train.onnx small.onnx --steps 5 --tolerance 1e-5 --html report.html",
		Flags: append(feedFlags(),
			&cli.Float64Flag{Name: "tolerance", Usage: "largest relative difference allowed, `X`: of gradients as a share of the largest, of the loss as a share of itself"},
			&cli.StringFlag{Name: "expect", Usage: "`saving>=30%,overhead<=30%,same-bits`: exit code 1 where a pair does not hold it"},
			&cli.BoolFlag{Name: "six", Usage: "make and compare the six standard variants of one forward model"},
			&cli.StringFlag{Name: "html", Usage: "write the report to `F.html`"},
			&cli.StringFlag{Name: "png", Usage: "draw timeline and comparison to `F.png`"},
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
			if err := e.refuseNumbers(c, "tolerance"); err != nil {
				return err
			}
			feeds, err := readFeeds(e, c)
			if err != nil {
				return err
			}
			o := compareOptions{steps: c.Int("steps"), html: c.String("html"), png: c.String("png")}
			sources, err := e.loadAll(paths...)
			if err != nil {
				return err
			}
			if err := pipeline.CanWrite(append(filesOf(sources), e.fed...), o.html, o.png); err != nil {
				return err
			}
			feeds.ProfileAside = o.html != ""
			if !c.IsSet("steps") {
				o.steps = 0
			}
			if c.IsSet("tolerance") {
				if o.tolerance = c.Float64("tolerance"); !(o.tolerance >= 0) {
					return fmt.Errorf("--tolerance %v: want a number of at least 0", o.tolerance)
				}
				o.bounded = true
			}
			if c.IsSet("expect") {
				if o.expect, err = report.ParseExpectations(c.String("expect")); err != nil {
					return fmt.Errorf("--expect %w", err)
				}
			}
			if c.Bool("six") {
				s, err := makeSix(e, paths[0], feeds)
				if err != nil {
					return err
				}
				paths, o.labels, o.parts = s.paths, s.labels, s.parts
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
	expect    []report.Expectation
	html, png string
	labels    []string
	// parts says in how many micro-batches a step of each graph takes what the
	// first one is fed.
	parts []int
	title string
}

// compareModels opens every graph, runs the steps interleaved after one step
// of warm-up each, and compares first steps. A graph that finds no memory beside
// the others runs alone after them. One that finds none alone is a row with its
// error; only when that is the first there is nothing to compare with.
func compareModels(e *env, paths []string, feeds remat.Options, o compareOptions) (*report.Compare, error) {
	subjects := make([]*subject, len(paths))
	defer func() {
		for _, s := range subjects {
			s.close()
		}
	}()
	if _, err := e.loadAll(paths...); err != nil {
		return nil, err
	}
	doc := &report.Compare{}
	for i, path := range paths {
		s, err := openPart(e, path, feeds, subjects, i, o.parts)
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
	differences, err := compareFirst(subjects)
	if err != nil {
		return nil, err
	}
	e.measuring.Store(true)
	stopped := interleave(e, subjects, o.steps, o.pace)
	for _, s := range subjects {
		if err := s.conclude(e, stopped == nil); err != nil {
			return nil, err
		}
	}
	if stopped == nil {
		stopped = runAlone(e, subjects, doc, feeds, o)
	}
	if stopped != nil {
		return doc, stopped
	}
	return doc, pairUp(doc, subjects, differences, o)
}

// conclude measures what is left of a graph that ran beside others, and closes it.
func (s *subject) conclude(e *env, complete bool) error {
	if s.session == nil || s.run.Error != "" || len(s.run.Steps) == 0 {
		return nil
	}
	err := s.finish(e, complete)
	if s.run.Rehearsed && outOfMemory(err) { // perhaps it fits alone
		s.run.Error, err = report.Text(err.Error()), nil
	}
	// All graphs share this process, so its peak says nothing of one.
	s.run.Memory.RSSPeakBytes, s.run.Load = nil, nil
	s.close() // the next one's second session needs the room
	return err
}

// runAlone runs those that found no memory beside the others once more, each
// alone; what the first one returned is gone by then, so only losses are compared.
func runAlone(e *env, subjects []*subject, doc *report.Compare, feeds remat.Options, o compareOptions) error {
	for i, s := range subjects {
		if s.run.Error == "" || len(subjects) == 1 || i < len(o.parts) && o.parts[i] > 1 {
			continue
		}
		s.close()
		again, err := openSubject(e, s.path, feeds)
		if err != nil {
			if !outOfMemory(err) {
				return err
			}
			s.run.Error = report.Text(err.Error())
			continue
		}
		again.run.Label, again.draw = s.run.Label, drawOf(again.session)
		subjects[i], doc.Models[i] = again, again.run
		stopped := interleave(e, subjects[i:i+1], o.steps, o.pace)
		again.run.Alone = again.run.Error == ""
		if err := again.conclude(e, stopped == nil); err != nil {
			return err
		}
		if stopped != nil {
			return stopped
		}
	}
	return nil
}

// openPart opens graph i, which takes what the first one is fed in parts.
func openPart(e *env, path string, feeds remat.Options, subjects []*subject, i int, parts []int) (*subject, error) {
	if i >= len(parts) || parts[i] < 2 {
		return openSubject(e, path, feeds)
	}
	if subjects[0].session == nil {
		return nil, fmt.Errorf("%s: it splits the batch of the first graph, which does not run", filepath.Base(path))
	}
	src, err := e.load(path)
	if err != nil {
		return nil, err
	}
	data, err := microData(subjects[0].session, src.Model, feeds, parts[i])
	if err != nil {
		return nil, err
	}
	feeds.Data, feeds.Feed, feeds.Feeds = data, without(feeds.Feed, data), without(feeds.Feeds, data)
	s, err := openSubject(e, path, feeds)
	if err == nil {
		s.parts = parts[i]
	}
	return s, err
}

// without leaves out the inputs whose values are cut into parts.
func without(feeds, cut map[string]remat.Tensor) map[string]remat.Tensor {
	rest := map[string]remat.Tensor{}
	for key, t := range feeds {
		name := key
		for _, prefix := range []string{"in:", "param:"} {
			name = strings.TrimPrefix(name, prefix)
		}
		if _, ok := cut[name]; !ok {
			rest[key] = t
		}
	}
	return rest
}

// outOfMemory reports an error that is a result: the variant does not fit.
func outOfMemory(err error) bool {
	var memory *remat.MemoryError
	return errors.As(err, &memory) || errors.Is(err, ort.ErrMemory) || errors.Is(err, syscall.ENOMEM)
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
				s.close() // the others need the room
				continue
			}
			s.session.Release() // the next graph needs the room
			bar.Add(1)
		}
		if i == 0 {
			for _, s := range subjects {
				s.visit = nil // all have been compared with the first
			}
			debug.FreeOSMemory() // its outputs
			ort.Trim()           // what was there beside them is not needed again
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
		return &checkError{errors.New(string(a.run.Error))}
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
			if d.BitIdentical == nil || !*d.BitIdentical {
				for _, why := range whyApart(a, b) {
					d.ApartBecause = append(d.ApartBecause, report.Text(why))
				}
			}
			if o.bounded {
				d = within(d, o.tolerance)
				if !*d.WithinTolerance && failed == nil {
					failed = &checkError{fmt.Errorf("%s differs from %s by more than --tolerance %g: %s", filepath.Base(b.path), filepath.Base(a.path), o.tolerance, d.Worst())}
				}
			}
		}
		pair := report.NewPair(a.run, b.run, d)
		for _, x := range o.expect {
			m := x.Of(&pair)
			pair.Expected = append(pair.Expected, m)
			if !m.Holds && failed == nil {
				failed = &checkError{fmt.Errorf("%s against %s: %s%s", filepath.Base(b.path), filepath.Base(a.path), m.Text(), m.Because(&d))}
			}
		}
		doc.Pairs = append(doc.Pairs, pair)
		doc.Pairs[i].Sentence = report.Text(doc.Sentence(i))
	}
	return failed
}

func within(d report.Difference, tolerance float64) report.Difference {
	t := report.Float(tolerance)
	ok := true
	for _, x := range []*report.Float{d.RelativeLoss, d.RelativeGradient} {
		if x != nil && !(float64(*x) <= tolerance) { // NaN is not within
			ok = false
		}
	}
	d.Tolerance, d.WithinTolerance = &t, &ok
	return d
}

// writeComparison prints the document and writes the pictures.
func writeComparison(e *env, doc *report.Compare, o compareOptions) error {
	page := &report.Page{Title: cmp.Or(o.title, "Comparison"), Compare: doc}
	if err := e.draw(page, o.html, doc.OverviewPNG, o.png); err != nil {
		return err
	}
	if !e.json {
		return doc.Text(e.stdout)
	}
	return report.WriteJSON(e.stdout, doc.Brief())
}

// draw writes the page and the chart of a result to the files that are asked for, "" for none.
func (e *env) draw(page *report.Page, html string, chart func(io.Writer) error, png string) error {
	if html != "" {
		page.Command, page.Facts = e.typed, machineFacts(e)
		if err := onnx.ReplaceFile(html, func(f *os.File) error { return page.HTML(f) }); err != nil {
			return err
		}
	}
	if png == "" {
		return nil
	}
	return onnx.ReplaceFile(png, func(f *os.File) error { return chart(f) })
}
