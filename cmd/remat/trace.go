package main

// run --trace: what was allocated and released in the first step, each event with
// its value, node and layer.
//
//	measured events ── blocks ──┐
//	predicted events ─ buffers ─┴─▶ the k-th allocation is the k-th; releases between
//	                                two allocations are of the same buffers, in any order
//
// ONNX Runtime releases what a node was the last to read in an order of its own.

import (
	"fmt"
	"os"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// traceFormats are what --format takes.
const (
	plainTrace  = "plain"
	chromeTrace = "chrome"
)

func readTraceFormat(format, trace string, given bool) error {
	switch {
	case format != plainTrace && format != chromeTrace:
		return fmt.Errorf("--format %q: want %s or %s", format, plainTrace, chromeTrace)
	case given && trace == "":
		return fmt.Errorf("--format %s: give the file to write, --trace T.json", format)
	}
	return nil
}

// named finds the predicted event of each measured one; ok is false where they do not
// agree.
func named(measured []ort.Event, predicted []report.Event) (list []report.Event, ok bool) {
	list = make([]report.Event, len(measured))
	buffers := map[uint64]int{}
	next := 0
	for i := 0; i < len(measured); {
		if m := measured[i]; m.Alloc {
			if next >= len(predicted) || predicted[next].Bytes != m.Bytes {
				return nil, false
			}
			buffers[m.ID], list[i] = predicted[next].Buffer, predicted[next]
			next, i = next+1, i+1
			continue
		}
		released := map[int]report.Event{}
		for next < len(predicted) && predicted[next].Bytes < 0 {
			released[predicted[next].Buffer] = predicted[next]
			next++
		}
		for ; i < len(measured) && !measured[i].Alloc; i++ {
			buffer, known := buffers[measured[i].ID]
			p, expected := released[buffer]
			if !known || !expected || p.Bytes != -measured[i].Bytes {
				return nil, false
			}
			list[i] = p
			delete(released, buffer)
		}
		if len(released) > 0 && i < len(measured) {
			return nil, false
		}
	}
	return list, true
}

// writeTrace writes what was allocated in the first step: measured events, and, where
// they agree with the prediction, whose they are.
func writeTrace(s *subject, path, format string) error {
	var events []report.Event
	agrees := false
	if s.run.Timeline != nil {
		events, agrees = named(s.trace, s.run.Timeline.Events)
	}
	if format == chromeTrace {
		if !agrees {
			return fmt.Errorf("--format %s: the events of %s have no names, as the step is not predicted: --format %s has the bytes", chromeTrace, s.path, plainTrace)
		}
		c := s.chromeTrace(events)
		return onnx.ReplaceFile(path, func(f *os.File) error { return c.Write(f) })
	}
	type event struct {
		Bytes    int64  `json:"bytes"`
		Live     int64  `json:"live_bytes"`
		ID       uint64 `json:"id"`
		Value    string `json:"value,omitempty"`
		Node     string `json:"node,omitempty"`
		Op       string `json:"op,omitempty"`
		Layer    string `json:"layer,omitempty"`
		Category string `json:"category,omitempty"`
		Phase    string `json:"phase,omitempty"`
	}
	out := make([]event, len(s.trace))
	live := int64(0)
	for i, t := range s.trace {
		bytes := t.Bytes
		if !t.Alloc {
			bytes = -bytes
		}
		live += bytes
		out[i] = event{Bytes: bytes, Live: live, ID: t.ID}
		if agrees {
			p := &events[i]
			out[i].Value, out[i].Node, out[i].Op, out[i].Layer = p.Value, p.Node, p.Op, string(p.Layer)
			out[i].Category, out[i].Phase = string(p.Category), string(p.Phase)
		}
	}
	return writeJSONFile(path, map[string]any{"model": s.path, "agrees_with_prediction": agrees, "events": out})
}

// chromeTrace sets the step's nodes and events on one time line: that of the profile's
// first run, where there is one. A node allocates as it begins and releases as it ends.
func (s *subject) chromeTrace(events []report.Event) *report.ChromeTrace {
	c := &report.ChromeTrace{Model: s.path, Base: s.run.Timeline.Base}
	place := map[string]int{}
	for i, n := range s.nodes {
		place[n.Node] = i
		n.Start, n.Duration = float64(i), 1
		c.Spans = append(c.Spans, n)
	}
	if s.measured != nil {
		c.Timed = true
		var spans []report.Span
		first := -1.0
		for _, n := range s.measured.Nodes {
			if n.Run > 0 {
				break
			}
			span := report.Span{Node: n.Node, Op: n.Op, Part: report.PartForward}
			if i, ok := place[n.Node]; ok {
				span = s.nodes[i]
			}
			if first < 0 {
				first = float64(n.Start.Microseconds())
			}
			span.Start, span.Duration = float64(n.Start.Microseconds())-first, float64(n.Duration.Microseconds())
			place[n.Node] = len(spans)
			spans = append(spans, span)
		}
		c.Spans = spans
	}
	at := 0.0
	for _, e := range events {
		if i, ok := place[e.Node]; ok && i < len(c.Spans) && c.Spans[i].Node == e.Node {
			n := &c.Spans[i]
			when := n.Start
			if e.Bytes < 0 {
				when += n.Duration
			}
			at = max(at, when)
		}
		c.Events = append(c.Events, report.TraceEvent{Event: e, At: at})
	}
	return c
}
