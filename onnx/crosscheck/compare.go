package crosscheck

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"

	onnxgo "github.com/owulveryck/onnx-go"
	"gorgonia.org/tensor"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// comparison walks our model beside onnx-go's record.
type comparison struct {
	*Result
	limit
	model *onnx.Model
}

// operators compares what onnx-go applied, in order, with the nodes.
func (c *comparison) operators(list []operator) {
	for i, o := range list {
		if i >= len(c.model.Graph.Nodes) {
			return
		}
		n := c.model.Graph.Nodes[i]
		c.Operators++
		if o.op != n.OpType() {
			c.differ("operator %d is %s, onnx-go has %s", i, n.OpType(), o.op)
			continue
		}
		if ours := names(n.Outputs); !slices.Equal(ours, o.outputs) {
			c.differ("operator %d %s makes %q, onnx-go has %q", i, o.op, ours, o.outputs)
		}
		ours := names(n.Inputs)
		// Without outputs there are no edges; without inputs onnx-go makes one up.
		if len(ours) > 0 && len(n.Outputs) > 0 && !slices.Equal(ours, o.inputs) {
			c.differ("operator %d %s reads %q, onnx-go has %q", i, o.op, ours, o.inputs)
		}
		c.attributes(i, n, o.attrs)
	}
}

func names(values []*onnx.Value) []string {
	out := make([]string, len(values))
	for i, v := range values {
		if v != nil {
			out[i] = v.Name
		}
	}
	return out
}

func (c *comparison) attributes(i int, n *onnx.Node, theirs map[string]any) {
	found := 0
	for _, a := range n.Proto.Attribute {
		got, ok := theirs[a.GetName()]
		if ok {
			found++
		}
		if !c.comparable(a) {
			continue
		}
		c.Attributes++
		if !ok || !sameAttribute(a, got) {
			c.differ("operator %d %s: attribute %q differs", i, n.OpType(), a.GetName())
		}
	}
	if found != len(theirs) {
		c.differ("operator %d %s: onnx-go has %d attributes, of which we know %d", i, n.OpType(), len(theirs), found)
	}
}

// comparable reports attributes that were left in onnx-go's bytes and have a
// type.
func (l limit) comparable(a *pb.AttributeProto) bool {
	switch a.GetType() {
	case pb.AttributeProto_FLOAT, pb.AttributeProto_INT, pb.AttributeProto_STRING,
		pb.AttributeProto_FLOATS, pb.AttributeProto_INTS, pb.AttributeProto_STRINGS:
		return true
	case pb.AttributeProto_TENSOR:
		return l.unreadable(a.GetT()) == ""
	}
	return false
}

func sameAttribute(a *pb.AttributeProto, got any) bool {
	switch v := got.(type) {
	case float32:
		return a.GetType() == pb.AttributeProto_FLOAT && math.Float32bits(v) == math.Float32bits(a.GetF())
	case int64:
		return a.GetType() == pb.AttributeProto_INT && v == a.GetI()
	case string:
		return a.GetType() == pb.AttributeProto_STRING && v == string(a.GetS())
	case []int64:
		return a.GetType() == pb.AttributeProto_INTS && slices.Equal(v, a.Ints)
	case []float32:
		return a.GetType() == pb.AttributeProto_FLOATS && slices.EqualFunc(v, a.Floats, func(x, y float32) bool {
			return math.Float32bits(x) == math.Float32bits(y)
		})
	case []string:
		return a.GetType() == pb.AttributeProto_STRINGS && slices.EqualFunc(v, a.Strings, func(x string, y []byte) bool {
			return x == string(y)
		})
	case tensor.Tensor:
		return a.GetType() == pb.AttributeProto_TENSOR && sameTensor(onnx.WrapTensor(a.GetT()), v)
	}
	return false
}

// initializers compares the data of those that onnx-go could be given.
func (c *comparison) initializers(r *recorder) {
	skipped := map[string]int{}
	for _, v := range c.model.Graph.Initializers {
		if kind := c.unreadable(v.Init.Proto); kind != "" {
			skipped[kind]++
			continue
		}
		got, ok := r.tensors[v.Name]
		if !ok {
			skipped["names that onnx-go did not ask for"]++
			continue
		}
		c.Initializers++
		if !sameTensor(v.Init, got) {
			c.differ("initializer %q differs", v.Name)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(skipped)) {
		c.skip("%d initializers: %s", skipped[kind], kind)
	}
}

// sameTensor compares shape and bytes. gorgonia keeps no shape for a scalar.
func sameTensor(ours *onnx.Tensor, theirs tensor.Tensor) bool {
	want, err := ours.Bytes()
	if err != nil {
		return false
	}
	shape := theirs.Shape()
	if len(shape) != len(ours.Dims()) {
		return false
	}
	for i, d := range ours.Dims() {
		if int64(shape[i]) != d {
			return false
		}
	}
	var got bytes.Buffer
	switch d := theirs.Data().(type) {
	case float32, float64, int32, int64, []float32, []float64, []int32, []int64:
		if binary.Write(&got, binary.LittleEndian, d) != nil {
			return false
		}
	default:
		return false
	}
	return bytes.Equal(want, got.Bytes())
}

// ends compares graph inputs and outputs.
func (c *comparison) ends(r *recorder, model *onnxgo.Model) {
	var inputs []*onnx.Value
	for _, v := range c.model.Graph.Inputs {
		if v.Init == nil {
			inputs = append(inputs, v)
		}
	}
	c.Inputs = c.list("input", names(inputs), r, model.Input)
	c.Outputs = c.list("output", names(c.model.Graph.Outputs), r, model.Output)
}

func (c *comparison) list(kind string, ours []string, r *recorder, ids []int64) int {
	theirs := make([]string, len(ids))
	for i, id := range ids {
		theirs[i] = r.nameOf(id)
	}
	if !slices.Equal(ours, theirs) {
		c.differ("the %ss are %q, onnx-go has %q", kind, ours, theirs)
	}
	return len(ours)
}
