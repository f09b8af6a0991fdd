package grad

// One direction of a recurrent node: its operands in the forms that
// backpropagation through time works on, and the few operations on them. Values
// over time lie as rows, [steps*batch, width], so that what does not depend on
// the order of steps is one operator for all of them; a Split cuts them into
// steps where the order matters.

import (
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// maxSteps bounds the nodes that one recurrent layer becomes, seven or so a step.
const maxSteps = 1 << 15

// A strand is one direction of a recurrent node. Values over time have the
// form [steps*batch, …]; lists of them are in the order of the file's time
// axis, whatever the direction.
type strand struct {
	c     *Context
	steps int
	// from is the place of the first step in the file's time, of a stretch.
	from   int
	batch  onnx.Dim
	hidden int64
	gates  int64
	// reverse says that the state comes from the later step.
	reverse bool
	squash  []squash // as many as the operator has

	mask           *onnx.Value // [T*B,1], one where a sequence has a step; nil: everywhere
	x, y, before   *onnx.Value // [T*B,I], [T*B,H], [T*B,H] one step earlier
	w, r, wb, rb   *onnx.Value // [G*H,I], [G*H,H], [G*H] or nil
	h0, c0         *onnx.Value // [B,H], nil for zeros
	gy, gyh, gyc   *onnx.Value // [T*B,H], [B,H], [B,H], nil for none
	wantH0, wantC0 bool
}

// strands reads the node.
func (c *Context) strands(gates int64) []*strand {
	x, w, r := c.In(0), c.In(1), c.In(2)
	if c.Rank(x) != 3 || c.Rank(w) != 3 || c.Rank(r) != 3 {
		c.Fail("operands that are not of rank 3")
		return nil
	}
	steps, ok := x.Type.Shape[0].Int()
	if !ok || steps < 1 {
		c.Fail("the sequence length %s is unknown: give --dim", x.Type.Shape[0])
		return nil
	}
	if steps > maxSteps {
		c.Fail("a sequence of %d steps is too long to be unrolled", steps)
		return nil
	}
	hidden, ok1 := r.Type.Shape[2].Int()
	directions, ok2 := r.Type.Shape[0].Int()
	if !ok1 || !ok2 || directions < 1 || directions > 2 {
		c.Fail("the weight's shape %s is unknown", r.Type.Shape)
		return nil
	}
	c.refuseRecurrent()
	squashes := c.squashes(int(directions), map[int64][]string{4: {"Sigmoid", "Tanh", "Tanh"}, 3: {"Sigmoid", "Tanh"}, 1: {"Tanh"}}[gates])
	if c.e.b.Err() != nil {
		return nil
	}
	y, mask := c.AddOut(0), c.sequenceMask(steps)
	halves := &halver{c: c, made: map[*onnx.Value][]*onnx.Value{}}
	var list []*strand
	for d := range int(directions) {
		s := &strand{c: c, steps: int(steps), batch: x.Type.Shape[1], hidden: hidden, gates: gates, squash: squashes[d], mask: mask}
		s.reverse = d == 1 || c.Node.Str("direction", "forward") == "reverse"
		s.read(d, int(directions), y, halves)
		list = append(list, s)
	}
	return list
}

// read takes direction d's part of every operand.
func (s *strand) read(d, directions int, y *onnx.Value, halves *halver) {
	c := s.c
	part := func(v *onnx.Value, axis int) *onnx.Value {
		if v == nil || directions == 1 {
			return v
		}
		return halves.of(v, axis)[d]
	}
	drop := func(v *onnx.Value) *onnx.Value {
		if v == nil {
			return nil
		}
		return c.Do("Squeeze", part(v, 0), c.IntList(0))
	}
	rows := func(v *onnx.Value, axis int) *onnx.Value {
		if v == nil {
			return nil
		}
		width, ok := v.Type.Shape[len(v.Type.Shape)-1].Int()
		if !ok {
			c.Fail("the width of %q is unknown", v.Name)
			return nil
		}
		return s.rows(c.ReshapeTo(part(v, axis), -1, width))
	}
	s.x = s.c.rowsOf(c.In(0))
	s.y = rows(y, 1)
	s.w, s.r = drop(c.In(1)), drop(c.In(2))
	if b := drop(c.In(3)); b != nil {
		n := s.gates * s.hidden
		both := c.Split(b, 0, n, n)
		s.wb, s.rb = both[0], both[1]
	}
	s.h0, s.c0 = drop(c.In(5)), drop(c.In(6))
	s.wantH0, s.wantC0 = c.Needs(5), c.Needs(6)
	s.gy = s.masked(rows(c.Grad(0), 1))
	s.gyh, s.gyc = drop(c.Grad(1)), drop(c.Grad(2))
	s.before = s.shifted(s.states(), s.h0)
}

// A strand is worked on in so many stretches, of so many steps at least.
const (
	mostStretches = 8
	leastStretch  = 8
)

// stretches cuts the strand, in the order in which it runs forward. Gates and factors of all
// steps at once are some 25 times the states; those of a stretch are needed only until
// backward has passed it. Their numbers are the same: a product's rows do not depend on one another.
func (s *strand) stretches() []*strand {
	n := max(1, min(mostStretches, s.steps/leastStretch))
	if _, static := s.batch.Int(); !static {
		for s.steps%n != 0 { // rows that are not known are cut evenly, or not at all
			n--
		}
	}
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = s.steps*(i+1)/n - s.steps*i/n
	}
	x, y, before, mask := s.cut(s.x, lengths), s.cut(s.y, lengths), s.cut(s.before, lengths), s.cut(s.mask, lengths)
	list, from := make([]*strand, n), 0
	for i, steps := range lengths {
		part := *s
		part.from, part.steps = from, steps
		part.x, part.y, part.before, part.mask = x[i], y[i], before[i], mask[i]
		list[i], from = &part, from+steps
	}
	if s.reverse {
		slices.Reverse(list)
	}
	return list
}

// cut splits a value over time into stretches of so many steps.
func (s *strand) cut(v *onnx.Value, steps []int) []*onnx.Value {
	if v == nil || len(steps) == 1 {
		return slices.Repeat([]*onnx.Value{v}, len(steps))
	}
	inputs, attrs := build.In(v), []onnx.Attribute{onnx.IntAttr("axis", 0)}
	if batch, static := s.batch.Int(); static {
		var rows []int64
		for _, n := range steps {
			rows = append(rows, int64(n)*batch)
		}
		inputs = append(inputs, s.c.IntList(rows...))
	} else {
		attrs = append(attrs, onnx.IntAttr("num_outputs", int64(len(steps))))
	}
	parts := s.c.Nodes("", "Split", inputs, len(steps), attrs...)
	for i, p := range parts {
		if p != nil {
			p.Type = onnx.TensorOf(v.Type.DType, onnx.Shape{s.batch.Mul(onnx.Static(int64(steps[i]))), v.Type.Shape[1]})
		}
	}
	return parts
}

// sequenceMask is one in rows that belong to a step of a sequence; nil where all do.
func (c *Context) sequenceMask(steps int64) *onnx.Value {
	lens := c.In(4)
	if lens == nil {
		return nil
	}
	if given, ok := c.Ints(lens); ok && !slices.ContainsFunc(given, func(l int64) bool { return l != steps }) {
		return nil
	}
	column := c.Const(onnx.Int64Tensor(upTo(steps), steps, 1))
	wide := c.Op("Cast", build.In(lens), onnx.IntAttr("to", int64(onnx.Int64)))
	mask := c.Op("Cast", build.In(c.Do("Less", column, wide)), onnx.IntAttr("to", int64(c.In(0).Type.DType)))
	return c.ReshapeTo(mask, -1, 1)
}

// masked is v over time, zero where there is no step.
func (s *strand) masked(v *onnx.Value) *onnx.Value {
	if v == nil || s.mask == nil {
		return v
	}
	return s.rows(s.c.Do("Mul", v, s.mask))
}

// keeping is v over time, the share of a state that is kept: one where there is no step.
func (s *strand) keeping(v *onnx.Value) *onnx.Value {
	if s.mask == nil {
		return v
	}
	return s.c.rest(s.masked(s.c.rest(v)))
}

// passing lists by steps, [B,1], where a state's gradient passes unchanged; nil: nowhere.
func (s *strand) passing() []*onnx.Value {
	if s.mask == nil {
		return make([]*onnx.Value, s.steps)
	}
	return s.each(s.rows(s.c.rest(s.mask)))
}

// states is y with the state wherever a later step of the strand could read it: in
// reverse the first one before a sequence begins, where y is zero.
func (s *strand) states() *onnx.Value {
	if s.mask == nil || !s.reverse || s.h0 == nil {
		return s.y
	}
	c := s.c
	wide := c.Unsqueeze(s.h0, 0)
	rest := c.ReshapeDims(c.rest(s.mask), onnx.Shape{onnx.Static(int64(s.steps)), s.batch, onnx.Static(1)})
	return c.Plus(s.y, s.rows(c.ReshapeTo(c.Do("Mul", rest, wide), -1, s.hidden)))
}

// A halver splits values by direction, each of them once.
type halver struct {
	c    *Context
	made map[*onnx.Value][]*onnx.Value
}

func (h *halver) of(v *onnx.Value, axis int) []*onnx.Value {
	if h.made[v] == nil {
		h.made[v] = h.c.Split(v, int64(axis), 1, 1)
	}
	return h.made[v]
}

// rowsOf joins all axes but the last.
func (c *Context) rowsOf(v *onnx.Value) *onnx.Value {
	s := v.Type.Shape
	width, ok := s[len(s)-1].Int()
	if !ok {
		c.Fail("the width of %q is unknown", v.Name)
		return nil
	}
	out := c.ReshapeTo(v, -1, width)
	if out != nil {
		out.Type.Shape = onnx.Shape{s[:len(s)-1].Elements(), onnx.Static(width)}
	}
	return out
}

// rows notes the extent of a value over time.
func (s *strand) rows(v *onnx.Value) *onnx.Value {
	if v != nil {
		v.Type.Shape = onnx.Shape{s.batch.Mul(onnx.Static(int64(s.steps))), v.Type.Shape[1]}
	}
	return v
}

// zeros is a state of zeros.
func (s *strand) zeros() *onnx.Value {
	shape := onnx.Shape{s.batch, onnx.Static(s.hidden)}
	return s.c.e.filled(shape, s.c.In(0).Type.DType, 0)
}

// each splits a value over time into its steps, [B,…] each.
func (s *strand) each(v *onnx.Value) []*onnx.Value {
	if v == nil {
		return make([]*onnx.Value, s.steps)
	}
	if s.steps == 1 {
		return []*onnx.Value{v}
	}
	parts := s.c.Nodes("", "Split", build.In(v), s.steps, onnx.IntAttr("axis", 0), onnx.IntAttr("num_outputs", int64(s.steps)))
	for _, p := range parts {
		if p != nil {
			p.Type = onnx.TensorOf(v.Type.DType, onnx.Shape{s.batch, v.Type.Shape[1]})
		}
	}
	return parts
}

// joined is the opposite of each.
func (s *strand) joined(parts []*onnx.Value) *onnx.Value {
	if len(parts) == 1 {
		return parts[0]
	}
	return s.rows(s.c.Op("Concat", parts, onnx.IntAttr("axis", 0)))
}

// inFile joins what was computed of each stretch, in the order of the file's time.
func (s *strand) inFile(stretches []*onnx.Value) *onnx.Value {
	if s.reverse {
		slices.Reverse(stretches)
	}
	return s.joined(stretches)
}

// shifted is v one step earlier in the strand's own time, first in front.
func (s *strand) shifted(v, first *onnx.Value) *onnx.Value {
	c := s.c
	if v == nil {
		return nil
	}
	if first == nil {
		first = s.zeros()
	}
	if s.steps == 1 {
		return first
	}
	// Whole steps are cut off the [T,B,H] form, so that the batch may be free.
	three := c.ReshapeDims(v, onnx.Shape{onnx.Static(int64(s.steps)), s.batch, v.Type.Shape[1]})
	n := int64(s.steps)
	head := c.Unsqueeze(first, 0)
	var all *onnx.Value
	if s.reverse {
		all = c.Op("Concat", build.In(c.sliceOf(three, 0, 1, n), head), onnx.IntAttr("axis", 0))
	} else {
		all = c.Op("Concat", build.In(head, c.sliceOf(three, 0, 0, n-1)), onnx.IntAttr("axis", 0))
	}
	width, _ := v.Type.Shape[1].Int()
	return s.rows(c.ReshapeTo(all, -1, width))
}

// place is where step k, as the strand runs forward, stands in the file's time.
func (s *strand) place(k int) int {
	if s.reverse {
		k = s.steps - 1 - k
	}
	return s.from + k
}

// gemm is op(a) @ op(b) + plus.
func (c *Context) gemm(a, b, plus *onnx.Value, transA, transB bool) *onnx.Value {
	in := build.In(a, b)
	if plus != nil {
		in = append(in, plus)
	}
	return c.Op("Gemm", in, onnx.IntAttr("transA", flag(transA)), onnx.IntAttr("transB", flag(transB)))
}

// linear is a @ wᵀ + bias for rows over time.
func (s *strand) linear(a, w, bias *onnx.Value) *onnx.Value {
	return s.rows(s.c.gemm(a, w, bias, false, true))
}

// columns splits [rows, n*H] into parts of so many times H.
func (s *strand) columns(v *onnx.Value, parts ...int64) []*onnx.Value {
	sizes := make([]int64, len(parts))
	for i, p := range parts {
		sizes[i] = p * s.hidden
	}
	out := s.c.Split(v, 1, sizes...)
	for i := range out {
		if out[i] != nil {
			out[i].Type.Shape = onnx.Shape{v.Type.Shape[0], onnx.Static(sizes[i])}
		}
	}
	return out
}

func (s *strand) beside(parts ...*onnx.Value) *onnx.Value {
	return s.c.Op("Concat", parts, onnx.IntAttr("axis", 1))
}

// rest is 1 - v.
func (c *Context) rest(v *onnx.Value) *onnx.Value { return c.Minus(c.Scalar(v, 1), v) }

// swing is v*(1-v), the slope of a sigmoid; bend 1-v², that of a tanh.
func (c *Context) swing(v *onnx.Value) *onnx.Value { return c.Do("Mul", v, c.rest(v)) }
func (c *Context) bend(v *onnx.Value) *onnx.Value  { return c.rest(c.Do("Mul", v, v)) }

// times is a*b, nil where either is.
func (c *Context) times(a, b *onnx.Value) *onnx.Value {
	if a == nil || b == nil {
		return nil
	}
	return c.Do("Mul", a, b)
}

// plus adds what is there.
func (c *Context) plus(a, b *onnx.Value) *onnx.Value {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	return c.Plus(a, b)
}
