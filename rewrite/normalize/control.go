package normalize

// Control flow that a gradient has to pass is opened: a gradient of a subgraph
// needs what was inside at every trip, which ordinary nodes keep.
//
//	Loop, Scan   known trips: the body once a trip, what it carries handed on,
//	             what it collects stacked at the end
//	If           both branches, and Where takes what the condition says
//
// Weaknesses: a loop of many trips becomes a large graph, so it is refused above
// maxOpened nodes. Of an If both branches are computed.

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/onnx/traits"
)

// maxOpened is how many nodes one loop may become.
const maxOpened = 1 << 14

// branchesKey is the metadata entry of a Where that takes one of two branches of an If.
const branchesKey = "remat.branches"

// TakesBranch reports a Where that takes one of two branches of an If, both of which are computed.
func TakesBranch(n *onnx.Node) bool { return n.Is("Where") && n.Metadata(branchesKey) != "" }

// Open replaces the nodes with subgraphs that which accepts by ordinary ones. It
// returns how many it replaced, and for the others why they stay.
func Open(m *onnx.Model, o Options, which func(*onnx.Node) bool) (int, map[*onnx.Node]string, error) {
	s, err := inferred(m, o.Dims)
	if err != nil {
		return 0, nil, err
	}
	closed := map[*onnx.Node]string{}
	for _, n := range s.nodes() {
		open := map[string]func(*onnx.Node) (string, error){"If": s.both, "Loop": s.unroll, "Scan": s.unscan}[n.OpType()]
		if n.Domain() != "" || open == nil || !which(n) {
			continue
		}
		why, err := open(n)
		if err != nil {
			return 0, nil, fmt.Errorf("node %q (%s): %w", n.Label(), n.OpType(), err)
		}
		if why != "" {
			closed[n] = why
		}
		if err := s.b.Err(); err != nil {
			return 0, nil, err
		}
	}
	m.Graph.RemoveDead()
	return s.count, closed, nil
}

// inline puts a body before n and types it.
func (s *state) inline(n *onnx.Node, body *pb.GraphProto, args ...*onnx.Value) ([]*onnx.Node, []*onnx.Value, error) {
	nodes, outs, err := s.g.Inline(n, body, args...)
	if err != nil {
		return nil, nil, err
	}
	return nodes, outs, s.typed(nodes)
}

// both computes the two branches of an If.
func (s *state) both(n *onnx.Node) (string, error) {
	var outs [2][]*onnx.Value
	for i, name := range []string{"then_branch", "else_branch"} {
		body := n.Attr(name).GetG()
		if body == nil || len(body.Output) != len(n.Outputs) {
			return "it has no " + name + " of as many outputs", nil
		}
		if onnx.Holds(body, traits.ComputesStatistics) {
			return "its " + name + " has a BatchNormalization in training, whose running statistics would move where it is not taken, as both are computed: export the model with the branch decided", nil
		}
		var err error
		if outs[i], err = s.branch(n, body); err != nil {
			return err.Error(), nil // what was inlined is dead
		}
	}
	for i, o := range n.Outputs {
		a, b := outs[0][i].Type, outs[1][i].Type
		if o != nil && !o.Dead() && (a.Other != nil || !a.Ranked || !b.Ranked || a.DType != b.DType || !a.Shape.Equal(b.Shape)) {
			return fmt.Sprintf("its branches give %s and %s for %q: both are computed, which needs equal shapes", a, b, o.Name), nil
		}
	}
	s.scope(n)
	cond := n.In(0)
	if rank(cond) != 0 { // one element of any rank: it must not raise the outputs'
		cond = s.b.Op("Reshape", build.In(cond, s.b.Ints()))
	}
	values := make([]*onnx.Value, len(n.Outputs))
	for i, o := range n.Returns() {
		if o.Dead() { // as caches are that nobody reads
			n.DropOutput(i)
			continue
		}
		values[i] = s.b.Op("Where", build.In(cond, outs[0][i], outs[1][i]))
		if values[i] != nil {
			values[i].Producer.SetMetadata(branchesKey, "taken by "+n.Label())
		}
	}
	if err := s.b.Err(); err != nil {
		return "", err
	}
	s.g.InsertBefore(n, s.b.Take()...)
	s.becomes(n, values)
	return "", nil
}

// branch puts a branch of n before it, decides the Ifs in it that are known, and
// computes both branches of one that it returns.
func (s *state) branch(n *onnx.Node, body *pb.GraphProto) ([]*onnx.Value, error) {
	nodes, outs, err := s.inline(n, body)
	if err != nil {
		return nil, err
	}
	s.scope(n)
	for i, v := range outs { // what is decided replaces values in their readers
		outs[i] = s.b.Op("Identity", build.In(v))
	}
	reads := s.b.Take()
	s.g.InsertBefore(n, reads...)
	count := s.count
	if err := s.decide(nodes); err != nil {
		return nil, err
	}
	for i, read := range reads {
		for p := read.In(0).Producer; p != nil && p.Is("If"); p = read.In(0).Producer {
			if why, err := s.both(p); err != nil || why != "" {
				s.count = count
				return nil, errors.Join(err, fmt.Errorf("in it, %q: %s", p.Label(), why))
			}
		}
		outs[i] = read.In(0)
		s.g.Remove(read)
	}
	s.count = count // n itself may stay
	return outs, nil
}

// unroll writes out a Loop whose condition is known at every trip.
func (s *state) unroll(n *onnx.Node) (string, error) {
	body := n.Attr("body").GetG()
	carried := max(len(n.Inputs)-2, 0)
	if body == nil || len(body.Input) != 2+carried || len(body.Output) != 1+len(n.Outputs) || len(n.Outputs) < carried {
		return "its body does not fit its inputs and outputs", nil
	}
	limit, going := int64(math.MaxInt64), true
	if n.In(0) != nil {
		m, known := s.types.Int64s(n.In(0))
		if !known || len(m) != 1 {
			return "its number of trips is not known: give the dimensions that decide it with --dim, or export it unrolled", nil
		}
		limit = m[0]
	}
	if n.In(1) != nil {
		c, known := s.types.Int64s(n.In(1))
		if !known || len(c) != 1 {
			return "whether it makes a trip is not known before it runs: export it unrolled", nil
		}
		going = c[0] != 0
	}
	values := append([]*onnx.Value(nil), n.Inputs[min(2, len(n.Inputs)):]...)
	collected := make([][]*onnx.Value, len(n.Outputs)-carried)
	for trip := int64(0); trip < limit && going; trip++ {
		if (trip+1)*int64(len(body.Node)+1) > maxOpened {
			return fmt.Sprintf("unrolling it would take more than %d nodes", maxOpened), nil
		}
		s.scope(n)
		at := s.b.Int(trip)
		on := s.b.Const(onnx.NewTensor(onnx.Bool, nil, []byte{1}))
		_, outs, err := s.inline(n, body, append([]*onnx.Value{at, on}, values...)...)
		if err != nil {
			return err.Error(), nil
		}
		if outs[0] != on {
			c, known := s.types.Int64s(outs[0])
			if !known || len(c) != 1 {
				return "its condition is not known before it runs: give the dimensions that decide it with --dim, or export it unrolled", nil
			}
			going = c[0] != 0
		}
		values = outs[1 : 1+carried]
		for i := range collected {
			collected[i] = append(collected[i], outs[1+carried+i])
		}
	}
	return s.closeLoop(n, values, collected, nil)
}

// unscan writes out a Scan over sequences of known length.
func (s *state) unscan(n *onnx.Node) (string, error) {
	body := n.Attr("body").GetG()
	states := len(n.Inputs) - int(n.Int("num_scan_inputs", 0))
	if body == nil || states < 0 || states >= len(n.Inputs) || len(body.Input) != len(n.Inputs) || len(body.Output) != len(n.Outputs) || states > len(n.Outputs) {
		return "its body does not fit its inputs and outputs", nil
	}
	parts := make([][]*onnx.Value, len(n.Inputs)-states)
	trips := int64(-1)
	for i := range parts {
		x := n.In(states + i)
		axis := normalAxis(nth(n.Ints("scan_input_axes"), i), rank(x))
		if axis < 0 {
			return fmt.Sprintf("the rank of input %d is not known", states+i), nil
		}
		length, known := x.Type.Shape[axis].Int()
		if !known || trips >= 0 && trips != length {
			return "its number of trips is not known: give the dimensions that decide it with --dim, or export it unrolled", nil
		}
		trips = length
		if trips*int64(len(body.Node)+1) > maxOpened {
			return fmt.Sprintf("unrolling it would take more than %d nodes", maxOpened), nil
		}
		s.scope(n)
		parts[i] = s.rows(x, axis, int(length), nth(n.Ints("scan_input_directions"), i) == 1)
		s.g.InsertBefore(n, s.b.Take()...)
	}
	values := append([]*onnx.Value(nil), n.Inputs[:states]...)
	collected := make([][]*onnx.Value, len(n.Outputs)-states)
	for trip := range int(trips) {
		args := append([]*onnx.Value(nil), values...)
		for _, rows := range parts {
			args = append(args, rows[trip])
		}
		_, outs, err := s.inline(n, body, args...)
		if err != nil {
			return err.Error(), nil
		}
		values = outs[:states]
		for i := range collected {
			collected[i] = append(collected[i], outs[states+i])
		}
	}
	for i, rows := range collected {
		if nth(n.Ints("scan_output_directions"), i) == 1 {
			slices.Reverse(rows)
		}
	}
	return s.closeLoop(n, values, collected, n.Ints("scan_output_axes"))
}

// closeLoop puts what was carried to the end, and what was collected, in the place
// of a loop's outputs.
func (s *state) closeLoop(n *onnx.Node, carried []*onnx.Value, collected [][]*onnx.Value, axes []int64) (string, error) {
	s.scope(n)
	outs := append([]*onnx.Value(nil), carried...)
	read := func(i int) bool {
		o := n.Out(len(carried) + i)
		return o != nil && !o.Dead()
	}
	places := make([]int64, len(collected))
	for i, rows := range collected { // all of it before anything is made: what is made has to stay
		if !read(i) {
			continue
		}
		if len(rows) == 0 {
			return "it makes no trip", nil
		}
		if places[i] = nth(axes, i); places[i] < 0 { // one from the front needs no rank
			axis := normalAxis(places[i], rank(rows[0])+1)
			if axis < 0 {
				return fmt.Sprintf("the rank of %q is unknown", n.Out(len(carried)+i).Name), nil
			}
			places[i] = int64(axis)
		}
	}
	for i, rows := range collected {
		if !read(i) {
			outs = append(outs, nil)
			continue
		}
		for k, v := range rows {
			rows[k] = s.b.Op("Unsqueeze", build.In(v, s.b.Ints(places[i])))
		}
		v := rows[0]
		if len(rows) > 1 {
			v = s.b.Op("Concat", rows, onnx.IntAttr("axis", places[i]))
		}
		outs = append(outs, v)
	}
	for i, o := range n.Returns() {
		if o.Dead() {
			n.DropOutput(i)
		}
	}
	s.g.InsertBefore(n, s.b.Take()...)
	s.becomes(n, outs)
	return "", nil
}

// rows are the parts of x along an axis, which they lack.
func (s *state) rows(x *onnx.Value, axis, n int, backwards bool) []*onnx.Value {
	parts := []*onnx.Value{x}
	if n > 1 {
		parts = s.b.Node("", "Split", build.In(x), n, onnx.IntAttr("axis", int64(axis)), onnx.IntAttr("num_outputs", int64(n)))
	}
	out := make([]*onnx.Value, n)
	for i := range out {
		out[i] = s.b.Op("Squeeze", build.In(parts[i], s.b.Ints(int64(axis))))
	}
	if backwards {
		slices.Reverse(out)
	}
	return out
}

func nth(list []int64, i int) int64 {
	if i < len(list) {
		return list[i]
	}
	return 0
}
