package main

// A sweep as jobs of a scheduler: one command, with another word at its end.
//
//	--jobs FILE             ─▶ FILE: a line for each point, which is a command
//	--jobs FILE --point N   ─▶ FILE.points/N.json
//	--jobs FILE --collect   ─▶ what sweep prints that makes all points itself
//
// A point's file says of which sweep it is, by all that its figures depend on, so that
// a table is of one sweep.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// sweptSizes are what the figures of a sweep's points depend on.
type sweptSizes struct {
	Models     []string          `json:"models"`
	Files      map[string]string `json:"files"` // their sha256
	Precisions []string          `json:"precisions"`
	Strategies []string          `json:"strategies"`
	Batches    []int64           `json:"batches"`
	Seqs       []int64           `json:"seqs"`
	Layers     []int64           `json:"layers"`
	Accumulate []int64           `json:"accumulate"`
	Dims       map[string]int64  `json:"dims"`
	Optimizer  optim.Kind        `json:"optimizer"`
	Limit      int64             `json:"limit_bytes"`
	Measure    bool              `json:"measure"`
	Provider   string            `json:"provider"`
	Opt        int               `json:"opt"`
	Version    string            `json:"version"`
}

// A sweptPoint is the file of a point. Divided is how its graph was divided, by which the
// search for the largest size goes; null where no plan was found.
type sweptPoint struct {
	Sweep   json.RawMessage   `json:"sweep"`
	Divided *dividedAs        `json:"divided"`
	Point   report.SweepPoint `json:"point"`
}

type dividedAs struct{ Batch, Loss, Tile, UpdateRows division }

// A division is pipeline.Division with all its modes, which plan files do not have.
type division struct {
	Mode  pipeline.DivisionMode
	N     int
	Bytes int64
}

func (d *dividedAs) divisions() *pipeline.Divisions {
	return &pipeline.Divisions{Batch: pipeline.Division(d.Batch), Chunk: pipeline.Division(d.Loss), Tile: pipeline.Division(d.Tile), Rows: pipeline.Division(d.UpdateRows)}
}

// sweptJobs is what --jobs prints with --json.
type sweptJobs struct {
	Jobs    string `json:"jobs"`
	Points  int    `json:"points"`
	Collect string `json:"collect"`
}

// count is how many points the sweep has.
func (o *sweepOptions) count() int { return len(o.sizes()) * len(o.precisions) * len(o.strategies) }

// only is the sweep of one of the points, numbered from 1.
func (o sweepOptions) only(number int) sweepOptions {
	n := number - 1
	strategy, n := n%len(o.strategies), n/len(o.strategies)
	precision, n := n%len(o.precisions), n/len(o.precisions)
	size := o.sizes()[n]
	o.strategies, o.precisions = o.strategies[strategy:strategy+1], o.precisions[precision:precision+1]
	o.models = []string{size.model}
	o.batches, o.seqs, o.layers, o.accumulates = []int64{size.batch}, []int64{size.seq}, []int64{size.layers}, []int64{size.accumulate}
	return o
}

// describe says of which sweep a point is, with the same bytes for the same sweep.
func (o *sweepOptions) describe(e *env) (json.RawMessage, error) {
	d := sweptSizes{
		Models: o.models, Files: map[string]string{}, Precisions: o.precisions, Strategies: o.strategies, Batches: o.batches, Seqs: o.seqs, Layers: o.layers,
		Accumulate: o.accumulates, Dims: e.dims, Optimizer: o.optimizer, Limit: o.limit, Measure: o.measure, Provider: e.asked, Opt: e.opt, Version: version,
	}
	for _, name := range o.models {
		if _, builtIn, err := builtInModel(name); err != nil {
			return nil, err
		} else if builtIn {
			continue
		}
		src, err := pipeline.Load(name)
		if err != nil {
			return nil, err
		}
		d.Files[name] = src.Hash()
		src.Close()
	}
	return json.Marshal(d)
}

// pointPath is where a point's file lies.
func (o *sweepOptions) pointPath(number int) string {
	return filepath.Join(o.jobs+".points", fmt.Sprintf("%d.json", number))
}

// writeJobs writes a command for each point.
func writeJobs(e *env, o sweepOptions) error {
	if _, err := o.describe(e); err != nil { // a file that cannot be read, before many jobs say so
		return err
	}
	count := o.count()
	err := onnx.ReplaceFile(o.jobs, func(f *os.File) error {
		for number := range count {
			if _, err := fmt.Fprintln(f, e.commandWith("--point", fmt.Sprint(number+1))); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	doc := sweptJobs{Jobs: o.jobs, Points: count, Collect: e.commandWith("--collect")}
	if e.json {
		return report.WriteJSON(e.stdout, doc)
	}
	_, err = fmt.Fprintf(e.stdout, "%s: %d points, a command a line; when all have run:\n%s\n", doc.Jobs, doc.Points, doc.Collect)
	return err
}

// commandWith is what was typed, with further words where flags stand.
func (e *env) commandWith(words ...string) string {
	at := slices.Index(e.words, "--")
	if at < 0 {
		at = len(e.words)
	}
	return commandLine(slices.Insert(slices.Clone(e.words), at, words...))
}

// savePoint writes the file of a point that was made.
func (w *sweeper) savePoint(all *sweepOptions, point report.SweepPoint) error {
	of, err := all.describe(w.e)
	if err != nil {
		return err
	}
	s := sweptPoint{Sweep: of, Point: point}
	if d := w.best[point.Strategy+" "+point.Precision]; d != nil {
		s.Divided = &dividedAs{division(d.Batch), division(d.Chunk), division(d.Tile), division(d.Rows)}
	}
	path := all.pointPath(all.point)
	if err := os.Mkdir(filepath.Dir(path), 0o777); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return writeJSONFile(path, s)
}

// collect reads the points that jobs made.
func (w *sweeper) collect() ([]report.SweepPoint, error) {
	of, err := w.o.describe(w.e)
	if err != nil {
		return nil, err
	}
	var list []report.SweepPoint
	var missing []string
	for number := range w.o.count() {
		p, err := w.o.readPoint(number+1, of)
		switch {
		case errors.Is(err, os.ErrNotExist):
			missing = append(missing, fmt.Sprint(number+1))
			continue
		case err != nil:
			return nil, err
		}
		if p.Divided != nil {
			w.best[p.Point.Strategy+" "+p.Point.Precision] = p.Divided.divisions()
		}
		list = append(list, p.Point)
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s: %d of %d points have not been made: run line %s", w.o.jobs, len(missing), w.o.count(), some(missing))
	}
	return list, nil
}

// mostPointBytes bounds what is read of a point's file.
const mostPointBytes = 1 << 20

// readPoint reads the file of a point, which has to be that of this sweep.
func (o *sweepOptions) readPoint(number int, of json.RawMessage) (p sweptPoint, err error) {
	path := o.pointPath(number)
	again := fmt.Sprintf("run line %d of %s again", number, o.jobs)
	f, err := os.Open(path)
	if err != nil {
		return p, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, mostPointBytes))
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err != nil {
		return p, fmt.Errorf("%s: is no point of a sweep (%w): %s", path, err, again)
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, p.Sweep); err != nil || !bytes.Equal(compact.Bytes(), of) {
		return p, fmt.Errorf("%s: is of another sweep: %s", path, again)
	}
	only := o.only(number)
	if p.Point.Strategy != only.strategies[0] || p.Point.Precision != only.precisions[0] || p.Point.Model != only.models[0] {
		return p, fmt.Errorf("%s: is another point: %s", path, again)
	}
	return p, nil
}
