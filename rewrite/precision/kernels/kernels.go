// Package kernels knows which kernels ONNX Runtime's providers have, by
// operator, version and element type, so that a graph can be checked before a
// session puts nodes elsewhere, with copies, or refuses it.
//
// The table is asked of the packages themselves, see table.txt's first lines;
// docs/OperatorKernels.md of that version is made from the same source. Of the
// CPU's kernels it says since which release they are there (releases.go).
//
// A kernel serves a node if the version of the node's operator, which is that
// of the newest schema not newer than the file's opset, is the kernel's first,
// or lies within a closed range; a kernel with an open end serves its first
// version alone.
//
// Weakness: kernels that differ in two types at once are joined, so a pair of
// types may pass that no single kernel has.
package kernels

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
)

// A Provider is one of ONNX Runtime's execution providers.
type Provider string

// The providers that the table covers.
const (
	CPU  Provider = "cpu"
	CUDA Provider = "cuda"
)

//go:embed table.txt
var text string

type key struct{ provider, domain, op string }

// A row is a kernel, or a schema.
type row struct {
	first, last int64 // last 0: open
	since       Release
	in, out     ports
	types       map[string]string // constraint to the codes of its types
}

// ports are the constraints of inputs or outputs by position.
type ports struct {
	names  []string
	repeat bool
}

func (p ports) at(i int) string {
	switch {
	case i < len(p.names):
		return p.names[i]
	case p.repeat && len(p.names) > 0:
		return p.names[len(p.names)-1]
	}
	return ""
}

var codes = map[onnx.DType]byte{
	onnx.Float64: 'd', onnx.Float32: 'f', onnx.Float16: 'h', onnx.BFloat16: 'b', onnx.Bool: 'o', onnx.String: 't',
	onnx.Int8: 'c', onnx.Int16: 's', onnx.Int32: 'i', onnx.Int64: 'l',
	onnx.Uint8: 'C', onnx.Uint16: 'S', onnx.Uint32: 'I', onnx.Uint64: 'L',
}

var table = sync.OnceValue(func() map[key][]row {
	rows := map[key][]row{}
	for line := range strings.SplitSeq(text, "\n") {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] == "#" {
			continue
		}
		r := row{since: Oldest, types: map[string]string{}}
		first, last, closed := strings.Cut(f[3], "-")
		r.first, _ = strconv.ParseInt(first, 10, 64)
		if closed {
			r.last, _ = strconv.ParseInt(last, 10, 64)
		}
		for _, part := range f[4:] {
			if s, ok := strings.CutPrefix(part, "in:"); ok {
				r.in = parsePorts(s)
			} else if s, ok := strings.CutPrefix(part, "out:"); ok {
				r.out = parsePorts(s)
			} else if s, ok := strings.CutPrefix(part, "since=1."); ok {
				n, _ := strconv.Atoi(s)
				r.since = Release(n)
			} else if name, list, ok := strings.Cut(part, "="); ok {
				r.types[name] = list
			}
		}
		k := key{f[0], strings.TrimPrefix(f[1], "-"), f[2]}
		rows[k] = append(rows[k], r)
	}
	return rows
})

func parsePorts(s string) ports {
	s, repeat := strings.CutSuffix(s, "*")
	return ports{strings.Split(s, ","), repeat}
}

// schema is the newest one of an operator that the opset knows.
func schema(n *onnx.Node, opset int64) *row {
	if n.Domain() != "" {
		opset = 1
	}
	var found *row
	list := table()[key{"schema", n.Domain(), n.OpType()}]
	for i := range list {
		if r := &list[i]; r.first <= opset && (found == nil || r.first > found.first) {
			found = r
		}
	}
	return found
}

// Supports reports that a provider has a kernel for the node, its values being
// of the types that typeOf gives, nil: their own; unknown ones (Undefined) pass. Operators
// without a row in the schemas are not supported. Of the CPU's kernels only
// those count that every release from Relied on has.
func Supports(p Provider, n *onnx.Node, opset int64, typeOf func(*onnx.Value) onnx.DType) bool {
	since, ok := served(p, n, opset, typeOf)
	return ok && (p != CPU || since <= Relied)
}

// Runs is Supports for the newest release alone, with the types that values have.
func Runs(p Provider, n *onnx.Node, opset int64) bool {
	_, ok := served(p, n, opset, nil)
	return ok
}

// served is the oldest release in which the provider has a kernel for the node.
func served(p Provider, n *onnx.Node, opset int64, typeOf func(*onnx.Value) onnx.DType) (since Release, ok bool) {
	s := schema(n, opset)
	if s == nil {
		return 0, false
	}
	if typeOf == nil {
		typeOf = func(v *onnx.Value) onnx.DType { return v.Type.DType }
	}
	want := map[string]byte{}
	if !collect(want, n.Inputs, s.in, typeOf) || !collect(want, n.Outputs, s.out, typeOf) || !s.allows(want) {
		return 0, false
	}
	for _, r := range table()[key{string(p), n.Domain(), n.OpType()}] {
		if (r.first == s.first || r.first < s.first && s.first <= r.last) && r.allows(want) && (!ok || r.since < since) {
			since, ok = r.since, true
		}
	}
	return since, ok
}

// collect notes the type of each constraint; false where two values disagree.
func collect(want map[string]byte, values []*onnx.Value, p ports, typeOf func(*onnx.Value) onnx.DType) bool {
	for i, v := range values {
		if v == nil {
			continue
		}
		name, code := p.at(i), codes[typeOf(v)]
		if name == "" || code == 0 {
			continue
		}
		if have := want[name]; have != 0 && have != code && !p.repeat {
			return false
		}
		want[name] = code
	}
	return true
}

// allows reports that the row's constraints take the types; one that the row
// does not mention takes all.
func (r *row) allows(want map[string]byte) bool {
	for name, code := range want {
		if list, ok := r.types[name]; ok && strings.IndexByte(list, code) < 0 {
			return false
		}
	}
	return true
}

// A Missing is a node for which a provider has no kernel.
type Missing struct {
	Node, Op string
	// Types are those of its inputs.
	Types []onnx.DType
}

func (m Missing) String() string {
	names := make([]string, len(m.Types))
	for i, t := range m.Types {
		names[i] = t.String()
	}
	return fmt.Sprintf("node %q: no kernel for %s(%s)", m.Node, m.Op, strings.Join(names, ", "))
}

// Check lists the nodes of a typed model for which the provider has no kernel.
// Operators that ONNX Runtime expands into others, and those on integers and
// truth values alone, which it keeps on the CPU for shapes, are left out.
func Check(m *onnx.Model, p Provider) []Missing {
	var list []Missing
	for _, n := range m.Graph.Nodes {
		if t, _ := traits.Of(n); t.Expanded || n.Is("Constant") {
			continue
		}
		missing := Missing{Node: n.Label(), Op: n.OpType()}
		float := false
		for _, values := range [][]*onnx.Value{n.Inputs, n.Outputs} {
			for _, v := range values {
				float = float || v != nil && v.Type.DType.IsFloat()
			}
		}
		for _, v := range n.Reads() {
			missing.Types = append(missing.Types, v.Type.DType)
		}
		if float && !Supports(p, n, m.Opset(n.Domain()), nil) {
			list = append(list, missing)
		}
	}
	return list
}
