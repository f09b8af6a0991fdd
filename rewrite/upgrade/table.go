package upgrade

import (
	"errors"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/build"
)

// A change is what one opset did to one operator.
type change struct {
	op string
	// at is the opset that brought the change.
	at      int64
	doc     string
	rewrite func(*upgrader, *onnx.Node) error
}

var table = []change{
	{"TopK", 10, "k became an input", topK10},
	{"Slice", 10, "starts, ends and axes became inputs", slice10},
	{"Upsample", 10, "Resize took its place", upsample10},
	{"Scatter", 11, "ScatterElements took its place", func(_ *upgrader, n *onnx.Node) error {
		n.SetOpType("ScatterElements")
		return nil
	}},
	{"Resize", 11, "the region became an input; coordinates and rounding became choices, with other defaults", resize11},
	{"Dropout", 12, "ratio became an input; inference is the default", dropoutInputs},
	{"Clip", 11, "min and max became inputs", clipInputs},
	{"Pad", 11, "pads and value became inputs", padInputs},
	{"Squeeze", 13, "axes became an input", intsInput("axes")},
	{"Unsqueeze", 13, "axes became an input", intsInput("axes")},
	{"ReduceSum", 13, "axes became an input", intsInput("axes")},
	{"Split", 13, "split became an input", intsInput("split")},
	{"Softmax", 13, "works along one axis, not over all from it on", softmaxAxis},
	{"LogSoftmax", 13, "works along one axis, not over all from it on", softmaxAxis},
	{"Hardmax", 13, "works along one axis, not over all from it on", softmaxAxis},
	{"BatchNormalization", 14, "the saved statistics are gone", batchNorm14},
	{"RoiAlign", 16, "sampling at half pixels became the default", roiAlign16},
	{"ReduceL1", 18, "axes became an input", intsInput("axes")},
	{"ReduceL2", 18, "axes became an input", intsInput("axes")},
	{"ReduceLogSum", 18, "axes became an input", intsInput("axes")},
	{"ReduceLogSumExp", 18, "axes became an input", intsInput("axes")},
	{"ReduceMax", 18, "axes became an input", intsInput("axes")},
	{"ReduceMean", 18, "axes became an input", intsInput("axes")},
	{"ReduceMin", 18, "axes became an input", intsInput("axes")},
	{"ReduceProd", 18, "axes became an input", intsInput("axes")},
	{"ReduceSumSquare", 18, "axes became an input", intsInput("axes")},
	{"Split", 18, "equal parts need num_outputs", splitOutputs},
	{"DFT", 20, "axis became an input, with another default", dft20},
	{"GridSample", 20, "bilinear and bicubic lost their prefix", gridSample20},
	{"GroupNormalization", 21, "scale and bias are each channel's, not each group's", groupNorm21},
}

// intsInput moves a list of integers from an attribute to the second input.
func intsInput(name string) func(*upgrader, *onnx.Node) error {
	return func(u *upgrader, n *onnx.Node) error {
		if list := n.Ints(name); n.Has(name) {
			n.SetInput(1, u.b.Ints(list...))
			n.RemoveAttr(name)
		}
		return nil
	}
}

// scalar is a constant of the type of n's first input, of float32 where that is not
// known.
func (u *upgrader) scalar(n *onnx.Node, x float64) *onnx.Value {
	d := n.In(0).Type.DType
	if d == onnx.Undefined {
		d = onnx.Float32
	}
	return u.b.Scalar(d, x)
}

// topK10: k was one number, its input is a list of one.
func topK10(u *upgrader, n *onnx.Node) error {
	if n.Has("k") {
		n.SetInput(1, u.b.Ints(n.Int("k", 0)))
		n.RemoveAttr("k")
	}
	return nil
}

func slice10(u *upgrader, n *onnx.Node) error {
	for i, name := range []string{"starts", "ends", "axes"} {
		if n.Has(name) {
			n.SetInput(1+i, u.b.Ints(n.Ints(name)...))
			n.RemoveAttr(name)
		}
	}
	return nil
}

// upsample10: from opset 9 on its scales are an input, as Resize has them.
func upsample10(u *upgrader, n *onnx.Node) error {
	if n.Has("scales") {
		var scales []float64
		for _, x := range n.Attr("scales").GetFloats() {
			scales = append(scales, float64(x))
		}
		n.SetInput(1, u.b.Const(onnx.FloatTensor(onnx.Float32, scales, int64(len(scales)))))
		n.RemoveAttr("scales")
	}
	n.SetOpType("Resize")
	n.SetAttr(onnx.StringAttr("nearest_mode", "floor")) // no scale is below one
	return nil
}

// numbers are what a constant holds, or several that are put together, as exporters write
// scales that they fold no constants of.
func numbers(v *onnx.Value) (list []float64, known bool) {
	if v == nil {
		return nil, false
	}
	if t := v.Constant(); t != nil {
		list, err := t.Float64s()
		return list, err == nil
	}
	n := v.Producer
	switch {
	case n == nil:
		return nil, false
	case n.Is("Identity", "Cast", "Unsqueeze"):
		return numbers(n.In(0))
	case !n.Is("Concat"):
		return nil, false
	}
	for _, in := range n.Inputs {
		part, known := numbers(in)
		if !known {
			return nil, false
		}
		list = append(list, part...)
	}
	return list, true
}

// resize11 keeps what ONNX Runtime makes of the old operator: element i is the
// input's at i/scale, in mode nearest the one below where it grows and the one above
// where it shrinks.
func resize11(u *upgrader, n *onnx.Node) error {
	if n.Str("mode", "nearest") == "nearest" && !n.Has("nearest_mode") {
		scales, known := numbers(n.In(1))
		if !known {
			return errors.New("its scales are not known; export with opset 11 or newer")
		}
		up, down := false, false
		for _, x := range scales {
			up, down = up || x > 1, down || x < 1
		}
		if up && down {
			return errors.New("it grows and shrinks in one; export with opset 11 or newer")
		}
		rounding := "floor"
		if down {
			rounding = "ceil"
		}
		n.SetAttr(onnx.StringAttr("nearest_mode", rounding))
	}
	n.SetAttr(onnx.StringAttr("coordinate_transformation_mode", "asymmetric"))
	n.SetInput(2, n.In(1))
	n.SetInput(1, nil)
	return nil
}

func dft20(u *upgrader, n *onnx.Node) error {
	n.SetInput(2, u.b.Const(onnx.Int64Tensor([]int64{n.Int("axis", 1)})))
	n.RemoveAttr("axis")
	return nil
}

func splitOutputs(u *upgrader, n *onnx.Node) error {
	if n.In(1) == nil && !n.Has("num_outputs") {
		n.SetAttr(onnx.IntAttr("num_outputs", int64(len(n.Outputs))))
	}
	return nil
}

func clipInputs(u *upgrader, n *onnx.Node) error {
	for i, name := range []string{"min", "max"} {
		if n.Has(name) {
			n.SetInput(1+i, u.scalar(n, n.Float(name, 0)))
			n.RemoveAttr(name)
		}
	}
	return nil
}

func padInputs(u *upgrader, n *onnx.Node) error {
	if !n.Has("pads") {
		return nil
	}
	if err := intsInput("pads")(u, n); err != nil {
		return err
	}
	if v := n.Float("value", 0); v != 0 {
		n.SetInput(2, u.scalar(n, v))
	}
	n.RemoveAttr("value")
	return nil
}

// dropoutInputs: before opset 12 the mode was the runtime's, which is
// inference; so it is with the new operator without its third input.
func dropoutInputs(u *upgrader, n *onnx.Node) error {
	if n.Has("ratio") {
		n.SetInput(1, u.b.Scalar(onnx.Float32, n.Float("ratio", 0.5)))
		n.RemoveAttr("ratio")
	}
	return nil
}

// softmaxAxis keeps the meaning of old nodes: all axes from the given one on
// are one. For the last axis, by far the usual one, nothing changes, nor where all
// behind but one are of extent 1, as in [n, classes, 1, 1].
func softmaxAxis(u *upgrader, n *onnx.Node) error {
	axis := n.Int("axis", 1)
	x := n.In(0)
	if x.Type.Ranked {
		rank := int64(len(x.Type.Shape))
		if axis < 0 { // from opset 11 on
			axis += rank
		}
		if axis == rank-1 {
			n.SetAttr(onnx.IntAttr("axis", -1))
			return nil
		}
		if only, ok := onlyExtent(x.Type.Shape, axis); ok {
			n.SetAttr(onnx.IntAttr("axis", only))
			return nil
		}
	} else if axis == -1 {
		return nil
	}
	if axis < 0 {
		return fmt.Errorf("axis %d of a value of unknown rank", axis)
	}
	shape := u.b.Op("Shape", build.In(x))
	flat := u.b.Op("Flatten", build.In(x), onnx.IntAttr("axis", axis))
	n.SetInput(0, flat)
	n.SetAttr(onnx.IntAttr("axis", -1))
	return u.reshapeAfter(n, shape)
}

// onlyExtent is the one axis from the given one on whose extent is not 1, the first
// where there is none; false: there are more.
func onlyExtent(s onnx.Shape, from int64) (int64, bool) {
	axis, found := from, false
	for i := max(from, 0); i < int64(len(s)); i++ {
		if s[i].Is(1) {
			continue
		}
		if found {
			return 0, false
		}
		axis, found = i, true
	}
	return axis, true
}

// reshapeAfter gives the readers of n's output that output in another shape.
func (u *upgrader) reshapeAfter(n *onnx.Node, shape *onnx.Value) error {
	g := u.m.Graph
	out := n.Outputs[0]
	u.b.Nodes = append(u.b.Nodes, n)
	nodes := u.b.Take()
	back := u.b.Op("Reshape", build.In(out, shape))
	g.TakeOver(out, back)
	back.Producer.SetInput(0, out)
	out.Type = onnx.Type{}
	i := slices.Index(g.Nodes, n)
	rest := append([]*onnx.Node(nil), g.Nodes[i+1:]...)
	g.Nodes = append(append(append(g.Nodes[:i:i], nodes...), u.b.Take()...), rest...)
	return nil
}

// batchNorm14: the node is in training mode when it has the outputs of it.
func batchNorm14(u *upgrader, n *onnx.Node) error {
	if n.Int("spatial", 1) == 0 {
		return errors.New("it has statistics for each element (spatial=0), which no opset from 9 on has: export the model again")
	}
	training := n.Out(1) != nil || n.Out(2) != nil
	for i := 3; i < len(n.Outputs); i++ {
		if o := n.Outputs[i]; o != nil && !o.Dead() {
			return fmt.Errorf("its saved statistics %q are read", o.Name)
		}
		n.DropOutput(i)
	}
	if len(n.Outputs) > 3 {
		n.Outputs = n.Outputs[:3]
	}
	if training {
		n.SetAttr(onnx.IntAttr("training_mode", 1))
	}
	n.RemoveAttr("spatial")
	return nil
}

func roiAlign16(u *upgrader, n *onnx.Node) error {
	if !n.Has("coordinate_transformation_mode") {
		n.SetAttr(onnx.StringAttr("coordinate_transformation_mode", "output_half_pixel"))
	}
	return nil
}

func gridSample20(u *upgrader, n *onnx.Node) error {
	switch n.Str("mode", "bilinear") {
	case "bilinear":
		n.SetAttr(onnx.StringAttr("mode", "linear"))
	case "bicubic":
		n.SetAttr(onnx.StringAttr("mode", "cubic"))
	}
	return nil
}

// groupNorm21 gives each channel its group's scale and bias.
func groupNorm21(u *upgrader, n *onnx.Node) error {
	groups := n.Int("num_groups", 0)
	t := n.In(0).Type
	if !t.Ranked || len(t.Shape) < 2 {
		return errors.New("the rank of its input is not known")
	}
	channels, known := t.Shape[1].Int()
	if !known || groups <= 0 || channels%groups != 0 {
		return fmt.Errorf("%s channels are not known to be in %d groups", t.Shape[1], groups)
	}
	for i := 1; i <= 2; i++ { // before any node is made
		if !n.In(i).Type.Shape.Equal(onnx.StaticShape(groups)) {
			return fmt.Errorf("input %d is not known to hold a number for each group", i)
		}
	}
	for i := 1; i <= 2; i++ {
		column := u.b.Op("Reshape", build.In(n.In(i), u.b.Ints(groups, 1)))
		each := u.b.Op("Expand", build.In(column, u.b.Ints(groups, channels/groups)))
		n.SetInput(i, u.b.Op("Reshape", build.In(each, u.b.Ints(channels))))
	}
	return nil
}
