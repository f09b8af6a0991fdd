package report

// A step for trace viewers (chrome://tracing, Perfetto), in the Trace Event Format:
//
//	M  names of the process and of its two rows
//	X  row 1: the passes of the step; row 2: its nodes, one after the other
//	C  the counter "memory": bytes by category, stacked, after each event
//
// Times are microseconds. Without measured ones, the place in the step stands for
// them, a node a microsecond.

import (
	"encoding/json"
	"io"
)

// Part is what the work of a node is for.
type Part string

// The parts of a step: its phases, and what backward computes again.
const (
	PartForward    Part = "forward"
	PartRecomputed Part = "recomputed"
	PartBackward   Part = "backward"
	PartUpdate     Part = "update"
)

// Parts lists the parts in the order in which tables have them.
var Parts = []Part{PartForward, PartRecomputed, PartBackward, PartUpdate}

// A Span is a node's run within a step; Start and Duration are microseconds.
type Span struct {
	Node, Op        string
	Layer           string
	Part            Part
	Start, Duration float64
}

// A TraceEvent is an allocation or release at a time in microseconds.
type TraceEvent struct {
	Event
	At float64
}

// A ChromeTrace is a step for a viewer.
type ChromeTrace struct {
	Model string
	// Timed: the times are measured, else they are places.
	Timed  bool
	Base   Sizes
	Spans  []Span
	Events []TraceEvent
}

// traceEvent is one entry of the file.
type traceEvent struct {
	Name  string         `json:"name"`
	Cat   string         `json:"cat,omitempty"`
	Phase string         `json:"ph"`
	TS    *float64       `json:"ts,omitempty"`
	Dur   *float64       `json:"dur,omitempty"`
	PID   int            `json:"pid"`
	TID   int            `json:"tid"`
	Args  map[string]any `json:"args,omitempty"`
}

// Rows of the viewer.
const (
	phaseRow = 1
	nodeRow  = 2
)

// Write writes the file.
func (c *ChromeTrace) Write(w io.Writer) error {
	times := "microseconds, measured"
	if !c.Timed {
		times = "not measured: each node takes one microsecond"
	}
	out := []traceEvent{
		{Name: "process_name", Phase: "M", PID: 1, Args: map[string]any{"name": "one step of " + c.Model}},
		{Name: "thread_name", Phase: "M", PID: 1, TID: phaseRow, Args: map[string]any{"name": "pass"}},
		{Name: "thread_name", Phase: "M", PID: 1, TID: nodeRow, Args: map[string]any{"name": "nodes"}},
	}
	spans := apart(c.Spans)
	for i := 0; i < len(spans); {
		end := i
		for end+1 < len(spans) && spans[end+1].Part == spans[i].Part {
			end++
		}
		length := spans[end].Start + spans[end].Duration - spans[i].Start
		out = append(out, traceEvent{Name: string(spans[i].Part), Cat: "pass", Phase: "X", TS: new(spans[i].Start), Dur: new(length), PID: 1, TID: phaseRow})
		i = end + 1
	}
	for _, s := range spans {
		out = append(out, traceEvent{Name: s.Node, Cat: string(s.Part), Phase: "X", TS: new(s.Start), Dur: new(s.Duration), PID: 1, TID: nodeRow,
			Args: map[string]any{"op": s.Op, "layer": s.Layer}})
	}
	out = append(out, c.counters()...)
	return json.NewEncoder(w).Encode(map[string]any{
		"traceEvents": out, "displayTimeUnit": "ms",
		"otherData": map[string]any{"model": c.Model, "times": times},
	})
}

// apart cuts spans where the next one begins: rounded times may overlap by one.
func apart(spans []Span) []Span {
	out := append([]Span(nil), spans...)
	for i := range out {
		if i > 0 {
			out[i].Start = max(out[i].Start, out[i-1].Start)
		}
		if i+1 < len(out) {
			out[i].Duration = min(out[i].Duration, max(0, out[i+1].Start-out[i].Start))
		}
		out[i].Duration = max(0, out[i].Duration)
	}
	return out
}

// counters are the states of the memory counter; of those at one time the largest
// and the last, as a viewer draws only the last.
func (c *ChromeTrace) counters() []traceEvent {
	t := &Timeline{Base: c.Base}
	for _, e := range c.Events {
		t.Events = append(t.Events, e.Event)
	}
	var out []traceEvent
	at := 0.0
	add := func(s Sizes) {
		args := map[string]any{}
		for _, k := range AllCategories {
			args[string(k)] = s.Of(k)
		}
		out = append(out, traceEvent{Name: "memory", Cat: "memory", Phase: "C", TS: new(at), PID: 1, TID: nodeRow, Args: args})
	}
	add(c.Base)
	for _, p := range t.Points() {
		at = max(at, c.Events[p.Event].At)
		add(p.Live)
	}
	return out
}
