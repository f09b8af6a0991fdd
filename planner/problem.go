package planner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/onnx-remat/remat/ortmodel"
)

// A Role says what a value is for in a training step.
type Role uint8

const (
	// Activation is a value of the forward graph.
	Activation Role = iota
	// Parameter is a trained or frozen weight: an input or an initializer.
	Parameter
	// State is an optimizer's memory, or another input that a step updates.
	State
	// Feed is a batch, a label, a step scalar.
	Feed
	// Gradient is a value of the backward graph.
	Gradient
	// Returned is a value that the step hands out.
	Returned
	// Index is an integer or a shape: small, and kept whatever happens.
	Index
)

var roleNames = [...]string{"activation", "parameter", "state", "feed", "gradient", "returned", "index"}

// String returns the role's name in reports.
func (r Role) String() string {
	if int(r) < len(roleNames) {
		return roleNames[r]
	}
	return fmt.Sprintf("role(%d)", uint8(r))
}

// An Op describes one operator of the graph beside its ortmodel.Node.
type Op struct {
	// Name is unique in the problem.
	Name string
	// Type is the operator's type, for people.
	Type string
	// FLOPs is the work of one execution, in floating point operations (or
	// in nanoseconds, where measured times were given).
	FLOPs int64
	// Moved is the traffic of one execution in bytes, inputs and outputs.
	Moved int64
	// Forward: the loss needs it.
	Forward bool
	// Recomputable: running it again gives the same bits and changes nothing
	// else. Where it is false, Reason says why.
	Recomputable bool
	Reason       string
}

// A ValueInfo describes one value of the graph beside its ortmodel.Value.
type ValueInfo struct {
	// Name is unique in the problem.
	Name string
	Role Role
	// Wide: ONNX Runtime holds it in another type than the file says, so a control edge that waits
	// for it has it held in both.
	Wide bool `json:",omitempty"`
}

// A Problem is a training step on integers. Ops runs parallel to Graph.Nodes
// and Values to Graph.Values. The graph must not change once a solver saw it.
type Problem struct {
	Graph  ortmodel.Graph
	Ops    []Op
	Values []ValueInfo
	// Loss is the value that the forward part computes.
	Loss int
	// Added is the work, in FLOPs, that this form of the graph does on top of
	// the one it was made from; it counts as repeated.
	Added int64
	// Reread is what reading operands again costs this form, in FLOPs that take
	// as long; no operator has it, and it counts as repeated.
	Reread int64
	// Static: all shapes are numbers, so that ONNX Runtime plans reuse, and a
	// plan may erase them.
	Static bool
	// Cuts are the single-value cuts of the forward part, in forward order:
	// all that comes later depends on what comes earlier through that value
	// alone (parameters, masks and the like aside).
	Cuts []Cut
	// Layers are the cuts between which the structure repeats: layer i reads
	// Layers[i] and ends in Layers[i+1]. So there are len(Layers)-1 layers;
	// none if it is empty. Layers[0] is empty where the first layer
	// reads the step's inputs.
	Layers []Cut
	// LayerNames are what people call them.
	LayerNames []string
	// Beside are forward values that are alive at boundaries of layers beside
	// the boundary's own, since later layers read them: an encoder's output in
	// a decoder, a position bias of all layers, skip connections.
	Beside []int
	// Limits bound what some operators keep; a search heeds them.
	Limits []Limit

	once sync.Once
	ix   *index
	stop func() bool
	// tuned is a setting other than the standard one; tests make some.
	tuned *tuning
	// stands says of each operator how many it stands for (reroll.go); nil: for itself.
	stands []int64
}

// A Cut is the value through which all that comes later in forward depends on what comes
// earlier. In a step over micro-batches it is one of each, in their order.
type Cut []int

// StopWhen has the search behind "optimal", which runs once, ask from time to time
// whether it is to end with what it has found; nil: never. It finds some plan.
func (p *Problem) StopWhen(stop func() bool) { p.stop = stop }

// LayerCount returns the number of layers found.
func (p *Problem) LayerCount() int { return max(len(p.Layers)-1, 0) }

// LayerEnd is the value in which a layer ends, in a step over micro-batches that of the first.
func (p *Problem) LayerEnd(layer int) int { return p.Layers[layer+1][0] }

// LayerOf says which layer a forward operator belongs to, -1 for none: the
// last one whose input it depends on and whose output it does not. Where the
// first layer reads the step's inputs, nothing lies before it.
func (p *Problem) LayerOf() []int {
	depth := make([]int, len(p.Values)) // layers begun before the value
	begin := map[int]int{}
	first := 0
	for i, cut := range p.Layers {
		for _, v := range cut {
			begin[v] = i + 1
		}
		if len(cut) == 0 {
			first = i + 1
		}
	}
	out := make([]int, len(p.Ops))
	for op, n := range p.Graph.Nodes {
		out[op] = -1
		if !p.Ops[op].Forward {
			continue
		}
		d := first
		for _, v := range n.Inputs {
			if v >= 0 {
				d = max(d, depth[v])
			}
		}
		for _, v := range n.Outputs {
			if v < 0 {
				continue
			}
			depth[v] = d
			if b, ok := begin[v]; ok {
				depth[v] = b
			}
		}
		if d > 0 && d <= p.LayerCount() {
			out[op] = d - 1
		}
	}
	return out
}

// HasBackward reports whether any operator lies outside the forward part.
func (p *Problem) HasBackward() bool {
	for i := range p.Ops {
		if !p.Ops[i].Forward {
			return true
		}
	}
	return false
}

// FLOPs returns the work of the plain step, without what was added to it.
func (p *Problem) FLOPs() int64 {
	sum := -p.Added
	for i := range p.Ops {
		sum += p.Ops[i].FLOPs
	}
	return sum
}

// Floor is the least that a plan does on top of the plain step's work, as a share of it:
// what this form of the graph adds.
func (p *Problem) Floor() float64 { return overhead(p, p.Added+p.Reread) }

// Validate checks every invariant of a problem: parallel lengths, indexes in
// range, one producer per value, no cycle, sizes not negative, unique names.
func (p *Problem) Validate() error {
	if len(p.Ops) != len(p.Graph.Nodes) || len(p.Values) != len(p.Graph.Values) {
		return fmt.Errorf("problem: %d ops for %d nodes, %d value infos for %d values",
			len(p.Ops), len(p.Graph.Nodes), len(p.Values), len(p.Graph.Values))
	}
	producer, err := p.producers()
	if err != nil {
		return err
	}
	if err := p.checkNames(); err != nil {
		return err
	}
	if n := len(p.LayerNames); n > 0 && n != p.LayerCount() {
		return fmt.Errorf("problem: %d names for %d layers", n, p.LayerCount())
	}
	for _, list := range [][]Cut{p.Cuts, p.Layers, {p.Beside}} {
		for k, cut := range list {
			if k > 0 && len(cut) == 0 {
				return fmt.Errorf("problem: cut %d is at no value", k)
			}
			for _, v := range cut {
				if v < 0 || v >= len(p.Values) || producer[v] == ortmodel.None {
					return fmt.Errorf("problem: cut %d is not at a computed value", k)
				}
			}
		}
	}
	if p.Loss != ortmodel.None && (p.Loss < 0 || p.Loss >= len(p.Values)) {
		return fmt.Errorf("problem: loss %d out of range", p.Loss)
	}
	if err := p.checkComputed(producer); err != nil {
		return err
	}
	if topological(&p.Graph, producer, ortmodel.FileSchedule(len(p.Ops))) == nil {
		return errors.New("problem: the graph has a cycle")
	}
	return nil
}

// producers returns the operator that makes each value, None for what is fed, and
// checks numbers, sizes and costs on the way.
func (p *Problem) producers() ([]int, error) {
	nv := len(p.Values)
	producer := make([]int, nv)
	for v := range producer {
		producer[v] = ortmodel.None
		if p.Graph.Values[v].Bytes < 0 {
			return nil, fmt.Errorf("problem: value %q has %d bytes", p.Values[v].Name, p.Graph.Values[v].Bytes)
		}
	}
	for i := range p.Graph.Nodes {
		n := &p.Graph.Nodes[i]
		if p.Ops[i].FLOPs < 0 || p.Ops[i].Moved < 0 {
			return nil, fmt.Errorf("problem: op %q: negative cost", p.Ops[i].Name)
		}
		for _, list := range [][]int{n.Inputs, n.Outputs, n.Captures} {
			for _, v := range list {
				if v != ortmodel.None && (v < 0 || v >= nv) {
					return nil, fmt.Errorf("problem: op %q: value %d out of range", p.Ops[i].Name, v)
				}
			}
		}
		for _, pair := range append(append([]ortmodel.Pair{}, n.Alias...), n.InPlace...) {
			if pair.Input < 0 || pair.Input >= len(n.Inputs) || pair.Output < 0 || pair.Output >= len(n.Outputs) {
				return nil, fmt.Errorf("problem: op %q: alias %v out of range", p.Ops[i].Name, pair)
			}
		}
		for _, v := range n.Outputs {
			if v == ortmodel.None {
				continue
			}
			if producer[v] != ortmodel.None {
				return nil, fmt.Errorf("problem: value %q has two producers", p.Values[v].Name)
			}
			if k := p.Graph.Values[v].Kind; k == ortmodel.Feed || k == ortmodel.Constant {
				return nil, fmt.Errorf("problem: value %q is fed and computed", p.Values[v].Name)
			}
			producer[v] = i
		}
	}
	return producer, nil
}

// checkNames refuses names that are empty or stand twice.
func (p *Problem) checkNames() error {
	seen := make(map[string]bool, len(p.Ops))
	for i := range p.Ops {
		if name := p.Ops[i].Name; name == "" || seen[name] {
			return fmt.Errorf("problem: op %d: name %q is empty or taken", i, name)
		}
		seen[p.Ops[i].Name] = true
	}
	clear(seen)
	for i := range p.Values {
		if name := p.Values[i].Name; name == "" || seen[name] {
			return fmt.Errorf("problem: value %d: name %q is empty or taken", i, name)
		}
		seen[p.Values[i].Name] = true
	}
	return nil
}

// checkComputed refuses what is read and neither fed nor computed.
func (p *Problem) checkComputed(producer []int) error {
	for i := range p.Graph.Nodes {
		for _, list := range [][]int{p.Graph.Nodes[i].Inputs, p.Graph.Nodes[i].Captures} {
			for _, v := range list {
				if v == ortmodel.None || producer[v] != ortmodel.None {
					continue
				}
				if k := p.Graph.Values[v].Kind; k != ortmodel.Feed && k != ortmodel.Constant {
					return fmt.Errorf("problem: op %q reads %q, which nothing computes", p.Ops[i].Name, p.Values[v].Name)
				}
			}
		}
	}
	return nil
}

// WithOps returns the problem with other descriptions of the same operators,
// for solvers to look at anew.
func (p *Problem) WithOps(ops []Op) *Problem {
	return &Problem{
		Graph: p.Graph, Ops: ops, Values: p.Values, Loss: p.Loss, Added: p.Added, Reread: p.Reread,
		Static: p.Static, Cuts: p.Cuts, Layers: p.Layers, LayerNames: p.LayerNames, Beside: p.Beside, Limits: p.Limits, stop: p.stop, tuned: p.tuned,
	}
}

// WriteProblem writes p as JSON.
func WriteProblem(w io.Writer, p *Problem) error { return json.NewEncoder(w).Encode(p) }

// ReadProblem reads what WriteProblem wrote, and validates it.
func ReadProblem(r io.Reader) (*Problem, error) {
	p := new(Problem)
	if err := json.NewDecoder(r).Decode(p); err != nil {
		return nil, fmt.Errorf("problem: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return p, nil
}
