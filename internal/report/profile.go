package report

// A profile summed up: where the time of a step goes and what its nodes return, by
// node, operator, layer or part of the step.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
)

// NodeRun is one execution of one node.
type NodeRun struct {
	Node, Op, Layer string
	Part            Part
	Seconds         float64
	Bytes           int64 // that it returns
	Shapes          string
}

// Profile is the table of run --profile --by.
type Profile struct {
	By    string       `json:"by"`
	Sort  string       `json:"sort"`
	Steps int          `json:"steps"`
	Rows  []ProfileRow `json:"rows"`
}

// ProfileRow sums up nodes; all figures are of one step. What differs among its nodes
// is "".
type ProfileRow struct {
	Name  string `json:"name"`
	Op    Text   `json:"op"`
	Layer Text   `json:"layer"`
	Phase Text   `json:"phase"`
	// Share is of the time of all nodes.
	Seconds float64 `json:"seconds"`
	Share   float64 `json:"share"`
	Bytes   int64   `json:"bytes"`
	Calls   int     `json:"calls"`
	// Shapes are those of the node that takes most time: what it reads → what it returns.
	Shapes Text `json:"shapes"`
}

// ProfileKeys are what a profile is by, and ProfileSorts what it is sorted by.
var (
	ProfileKeys  = []string{"node", "operator", "layer", "phase"}
	ProfileSorts = []string{"time", "bytes", "calls"}
)

// NewProfile sums up the nodes of so many steps.
func NewProfile(runs []NodeRun, steps int, by, order string) *Profile {
	p := &Profile{By: by, Sort: order, Steps: steps}
	index := map[string]int{}
	longest := map[int]float64{}
	var all float64
	for i := range runs {
		n := &runs[i]
		key := map[string]string{"node": n.Node, "operator": n.Op, "layer": n.Layer, "phase": string(n.Part)}[by]
		at, ok := index[key]
		if !ok {
			at = len(p.Rows)
			index[key] = at
			p.Rows = append(p.Rows, ProfileRow{Name: key, Op: Text(n.Op), Layer: Text(n.Layer), Phase: Text(n.Part)})
		}
		r := &p.Rows[at]
		same := func(have *Text, is string) {
			if string(*have) != is {
				*have = ""
			}
		}
		same(&r.Op, n.Op)
		same(&r.Layer, n.Layer)
		same(&r.Phase, string(n.Part))
		r.Seconds += n.Seconds
		r.Bytes += n.Bytes
		r.Calls++
		all += n.Seconds
		if n.Seconds >= longest[at] {
			longest[at], r.Shapes = n.Seconds, Text(n.Shapes)
		}
	}
	for i := range p.Rows {
		r := &p.Rows[i]
		if all > 0 {
			r.Share = r.Seconds / all
		}
		r.Seconds /= float64(max(steps, 1))
		r.Bytes /= int64(max(steps, 1))
		r.Calls = (r.Calls + steps - 1) / max(steps, 1)
	}
	slices.SortStableFunc(p.Rows, func(a, b ProfileRow) int {
		switch order {
		case "bytes":
			return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Seconds, a.Seconds))
		case "calls":
			return cmp.Or(cmp.Compare(b.Calls, a.Calls), cmp.Compare(b.Seconds, a.Seconds))
		}
		return cmp.Compare(b.Seconds, a.Seconds)
	})
	return p
}

// mostProfileRows are shown in text; JSON has all.
const mostProfileRows = 30

func (p *Profile) table() Table {
	t := Table{Title: fmt.Sprintf("one step by %s, sorted by %s", p.By, p.Sort),
		Columns: []string{p.By, "op", "layer", "phase", ">time", ">share", ">returns", ">calls", "~shapes"}}
	var rest ProfileRow
	more := 0
	for i, r := range p.Rows {
		if i >= mostProfileRows {
			more++
			rest.Seconds, rest.Share = rest.Seconds+r.Seconds, rest.Share+r.Share
			rest.Bytes, rest.Calls = rest.Bytes+r.Bytes, rest.Calls+r.Calls
			continue
		}
		cells := []string{textOr(r.Name), textOr(string(r.Op)), textOr(string(r.Layer)), textOr(string(r.Phase)),
			units.Seconds(r.Seconds), units.Percent(r.Share), units.Bytes(r.Bytes), itoa(r.Calls), textOr(string(r.Shapes))}
		if at := map[string]int{"operator": 1, "layer": 2, "phase": 3}[p.By]; at > 0 {
			cells[at] = none // it is the name
		}
		t.add(cells...)
	}
	if more > 0 {
		t.add(fmt.Sprintf("%d more", more), none, none, none, units.Seconds(rest.Seconds), units.Percent(rest.Share), units.Bytes(rest.Bytes), itoa(rest.Calls), none)
	}
	return t.compact()
}

// ShapeText writes shapes as [2,64] [64,8] → [2,8].
func ShapeText(in, out [][]int64) string {
	list := func(shapes [][]int64) string {
		var parts []string
		for _, s := range shapes {
			parts = append(parts, strings.ReplaceAll(fmt.Sprint(s), " ", ","))
		}
		return strings.Join(parts, " ")
	}
	return list(in) + " → " + list(out)
}
