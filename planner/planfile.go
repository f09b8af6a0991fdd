package planner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/onnx-remat/remat/ortmodel"
)

// A plan on disk: readable, and editable by hand.
//
//	{"format": "remat-plan/1",
//	 "strategy": "optimal", "boundaries": [...],
//	 "keep": ["value", …],        forward values held until backward
//	 "recompute": ["operator", …],
//	 "control_edges": [{"operator": "", "after": "value"}],
//	 "schedule": ["operator", …]} each execution, repeats included
//
// "schedule" is the plan; "keep" and "recompute" follow from it. Whoever edits
// those two by hand leaves the schedule alone: where they differ from what it
// says, the edit wins and the schedule is made anew. Moving a value's name out
// of keep drops it, adding one keeps it; adding an operator to recompute drops
// its results, removing one keeps them. Without a schedule one is made.

const planFormat = "remat-plan/1"

type planFile struct {
	Format       string            `json:"format"`
	Strategy     string            `json:"strategy"`
	Boundaries   []string          `json:"boundaries"`
	Keep         []string          `json:"keep"`
	Recompute    []string          `json:"recompute"`
	ControlEdges []controlEdgeFile `json:"control_edges,omitempty"`
	EraseShapes  bool              `json:"erase_shapes,omitempty"`
	Notes        []string          `json:"notes,omitempty"`
	Schedule     []string          `json:"schedule,omitempty"`
}

type controlEdgeFile struct {
	Operator string `json:"operator"`
	After    string `json:"after"`
}

// WritePlan writes a plan as JSON, names in place of numbers.
func WritePlan(w io.Writer, p *Problem, pl *Plan) error {
	f := planFile{Format: planFormat, Strategy: pl.Strategy, EraseShapes: pl.EraseShapes, Notes: pl.Notes,
		Boundaries: p.valueNames(pl.Boundaries), Keep: p.valueNames(pl.Kept(p)),
		Recompute: []string{}}
	for op, n := range pl.Recomputed(p) {
		if n > 0 {
			f.Recompute = append(f.Recompute, p.Ops[op].Name)
		}
	}
	for _, a := range pl.ControlEdges {
		f.ControlEdges = append(f.ControlEdges, controlEdgeFile{p.Ops[a.Op].Name, p.Values[a.After].Name})
	}
	for _, op := range pl.Schedule {
		f.Schedule = append(f.Schedule, p.Ops[op].Name)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", " ")
	enc.SetEscapeHTML(false)
	return enc.Encode(f)
}

func (p *Problem) valueNames(values []int) []string {
	names := make([]string, 0, len(values))
	for _, v := range values {
		if v != ortmodel.None {
			names = append(names, p.Values[v].Name)
		}
	}
	return names
}

// ReadPlan reads a plan for p, edited or not. Errors are one line: what is
// wrong with which name.
func ReadPlan(r io.Reader, p *Problem) (*Plan, error) {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var f planFile
	if err := dec.Decode(&f); err != nil {
		return nil, fmt.Errorf("plan: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	if f.Format != planFormat {
		return nil, fmt.Errorf("plan: format %q, want %q", f.Format, planFormat)
	}
	if f.Keep == nil {
		return nil, errors.New(`plan: "keep" is missing: list the forward values that wait for backward, or [] for none`)
	}
	n := newNamer(p)
	plan := &Plan{Strategy: f.Strategy, EraseShapes: f.EraseShapes, Notes: f.Notes,
		Boundaries: n.valueList("boundaries", f.Boundaries), Schedule: n.opList("schedule", f.Schedule)}
	for _, a := range f.ControlEdges {
		plan.ControlEdges = append(plan.ControlEdges, ControlEdge{n.op("control_edges", a.Operator), n.value("control_edges", a.After)})
	}
	keep, recompute := n.valueList("keep", f.Keep), n.opList("recompute", f.Recompute)
	if n.err != nil {
		return nil, n.err
	}
	if f.Schedule == nil {
		return fromLists(p, plan, keep, recompute)
	}
	if err := plan.Check(p); err != nil {
		return nil, err
	}
	return applyEdits(p, plan, keep, recompute)
}

// fromLists makes the schedule of a plan that has none.
func fromLists(p *Problem, plan *Plan, keep, recompute []int) (*Plan, error) {
	ix := p.indexed()
	set := make([]bool, len(ix.root))
	for _, v := range keep {
		set[ix.root[v]] = true
	}
	for _, op := range recompute {
		if !ix.canRepeat(op) {
			return nil, fmt.Errorf("plan: recompute: %q cannot be recomputed: %s", p.Ops[op].Name, p.why(op))
		}
		for _, v := range ix.outs[op] {
			if set[v] {
				return nil, fmt.Errorf("plan: %q is listed in keep, but its producer %q in recompute", p.Values[v].Name, p.Ops[op].Name)
			}
		}
	}
	made := ix.planOf(plan.Strategy, set, plan.EraseShapes)
	made.Boundaries, made.Notes = plan.Boundaries, plan.Notes
	return made, nil
}

// applyEdits compares the lists with the schedule, and makes a new schedule
// where they differ.
func applyEdits(p *Problem, plan *Plan, keep, recompute []int) (*Plan, error) {
	ix := p.indexed()
	said := make([]bool, len(ix.root)) // kept, as the schedule says
	for _, v := range plan.Kept(p) {
		said[ix.root[v]] = true
	}
	listed := make([]bool, len(ix.root))
	for _, v := range keep {
		listed[ix.root[v]] = true
	}
	again := plan.Recomputed(p)
	repeat := make([]bool, len(p.Ops))
	for _, op := range recompute {
		repeat[op] = true
	}
	set := append([]bool(nil), said...)
	edited := false
	change := func(r int, to bool) {
		if !ix.pinned[r] && set[r] != to {
			set[r], edited = to, true
		}
	}
	for r := range said {
		if ix.root[r] == r && said[r] != listed[r] {
			change(r, listed[r])
		}
	}
	for op := range repeat {
		if repeat[op] == (again[op] > 0) {
			continue
		}
		if repeat[op] && !ix.canRepeat(op) {
			return nil, fmt.Errorf("plan: recompute: %q cannot be recomputed: %s", p.Ops[op].Name, p.why(op))
		}
		for _, v := range ix.outs[op] {
			if r := ix.root[v]; repeat[op] && listed[r] && !said[r] {
				return nil, fmt.Errorf("plan: %q was added to keep, but its producer %q to recompute", p.Values[v].Name, p.Ops[op].Name)
			}
			change(ix.root[v], !repeat[op])
		}
	}
	if !edited {
		return plan, nil
	}
	made := ix.planOf(plan.Strategy, set, plan.EraseShapes)
	made.Boundaries = plan.Boundaries
	made.Notes = append(append([]string(nil), plan.Notes...), "edited by hand")
	return made, nil
}

// A namer turns names into numbers and remembers the first that failed.
type namer struct {
	ops, values map[string]int
	p           *Problem
	err         error
}

func newNamer(p *Problem) *namer {
	n := &namer{ops: make(map[string]int), values: make(map[string]int), p: p}
	for i := range p.Ops {
		n.ops[p.Ops[i].Name] = i
	}
	for i := range p.Values {
		n.values[p.Values[i].Name] = i
	}
	return n
}

func (n *namer) find(field, kind, name string, in map[string]int) int {
	id, ok := in[name]
	if !ok && n.err == nil {
		n.err = fmt.Errorf("plan: %s: the graph has no %s %q", field, kind, name)
	}
	return id
}

func (n *namer) op(field, name string) int    { return n.find(field, "operator", name, n.ops) }
func (n *namer) value(field, name string) int { return n.find(field, "value", name, n.values) }

func (n *namer) opList(field string, names []string) []int {
	var list []int
	for _, name := range names {
		list = append(list, n.op(field, name))
	}
	return list
}

func (n *namer) valueList(field string, names []string) []int {
	var list []int
	for _, name := range names {
		v := n.value(field, name)
		if field == "keep" && n.err == nil {
			if op := n.p.indexed().producer[v]; op == ortmodel.None || !n.p.Ops[op].Forward {
				n.err = fmt.Errorf("plan: keep: %q is not a forward value", name)
			}
		}
		list = append(list, v)
	}
	return list
}
