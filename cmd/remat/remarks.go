package main

// What no figure says though a person would want to know it: one line each on
// stderr, and in the document as remarks. None of them changes the exit code.

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	remat "github.com/onnx-remat/remat/runtime"
)

// remark says a line about a run, once.
func (s *subject) remark(e *env, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if slices.Contains(s.run.Remarks, report.Text(line)) {
		return
	}
	s.run.Remarks = append(s.run.Remarks, report.Text(line))
	fmt.Fprintf(e.stderr, "remat: %s: %s\n", filepath.Base(s.path), line)
}

// rateFlags are the flags that set an input, by the name of that.
var rateFlags = []struct{ flag, input string }{
	{"lr", "lr"},
	{"loss-scale", "loss_scale"},
	{"loss-scale-backoff", "found_inf"}, {"loss-scale-growth", "found_inf"}, {"loss-scale-interval", "found_inf"},
}

// remarkRates says which rates were given that the graph does not read.
func (s *subject) remarkRates(e *env, m *onnx.Model) {
	for _, r := range rateFlags {
		v := m.Graph.Value(r.input)
		switch {
		case !e.rates[r.flag]:
		case r.input == "found_inf":
			if s.session.Scaler() == nil {
				s.remark(e, "--%s changes nothing: the graph has no loss scaling", r.flag)
			}
		case v == nil || !v.IsInput():
			s.remark(e, "--%s changes nothing: the graph has no input %s", r.flag, r.input)
		}
	}
}

// remarkDrawn says which inputs of a whole file were drawn at random beside those that were
// fed: a key may have been mistyped. Other graphs give a part of a step its inputs later.
func (s *subject) remarkDrawn(e *env, o remat.Options) {
	drawn := s.session.Drawn()
	if len(o.Feeds)+len(o.Feed)+len(o.Data) == 0 || len(drawn) == 0 {
		return
	}
	s.remark(e, "inputs without a feed, which were drawn at random: %s", some(drawn))
}

// remarkFromEnd says which fed numbers ONNX Runtime counts from the end of what they index.
func (s *subject) remarkFromEnd(e *env) error {
	list, err := s.session.FromEnd()
	for _, f := range list {
		s.remark(e, "%s: %s below zero, such as %d, which ONNX Runtime counts from the end of %d and reads as %d: %s",
			f.Input, plural(f.Count, "number is", "numbers are"), f.Number, f.Extent, f.Number+f.Extent, f.Feed)
	}
	return err
}

// remarkSteps says where a step's loss is no number, and that all updates were
// left out.
func (s *subject) remarkSteps(e *env, o remat.Options) {
	if s.run.Rehearsed || len(s.run.Steps) == 0 {
		return
	}
	skipped := 0
	for _, st := range s.run.Steps {
		if st.Skipped {
			skipped++
		}
	}
	last := s.run.Steps[len(s.run.Steps)-1]
	if skipped == len(s.run.Steps) {
		first := s.run.Steps[0].LossScale
		s.remark(e, "all %s skipped, no parameter was updated: gradients overflow at a loss scale of %s to %s; lower --loss-scale",
			plural(skipped, "step was", "steps were"), scale(first), scale(last.LossScale))
	}
	for i, loss := range s.run.Losses() {
		if !math.IsNaN(loss) && !math.IsInf(loss, 0) {
			continue
		}
		why := "its inputs are out of range, or an operator divides by zero"
		if i > 0 && s.roles.Updates() {
			why = fmt.Sprintf("lower --lr (now %v) or clip gradients (remat grad --clip-norm 1)", o.LR)
		}
		s.remark(e, "the loss is %v at step %d of %d: %s", loss, i+1, len(s.run.Steps), why)
		break
	}
}

func scale(x *report.Float) string {
	if x == nil {
		return "?"
	}
	return units.Number(float64(*x))
}

// plural is a number with what it counts.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// unpredicted says why there is no prediction, "" where there is one.
func unpredicted(p interface{ Exact() bool }, unknown []string, err error) string {
	switch {
	case err != nil:
		return err.Error()
	case p.Exact():
		return ""
	case len(unknown) > 1:
		return fmt.Sprintf("%s, and %d more", unknown[0], len(unknown)-1)
	}
	return unknown[0]
}

// checkPrediction takes back the prediction of a graph with free dimensions that the
// first step did not confirm: ONNX Runtime plans with names in place of sizes there.
func (s *subject) checkPrediction(e *env) {
	m := &s.run.Memory
	measured := s.session.Memory()
	if len(s.free) == 0 || m.PredictedLivePeakBytes == nil || *m.PredictedLivePeakBytes == measured.LivePeakBytes && *m.PredictedReservedBytes == measured.ReservedBytes {
		return
	}
	s.run.NoPrediction = report.Text(fmt.Sprintf("the file leaves dimensions free (%s): ONNX Runtime plans without their sizes; give --dim to plan with them", strings.Join(s.free, ", ")))
	m.PredictedLivePeakBytes, m.PredictedSessionBytes, m.PredictedReservedBytes, m.PredictedArenaReservedBytes = nil, nil, nil, nil
	s.run.Timeline, s.run.Peak, s.run.Phases, s.arena = nil, nil, nil, nil
	s.remark(e, "not predicted: %s", s.run.NoPrediction)
}
