package grad

// Masters: a parameter of a half type that is trained becomes a float32 input, and the
// model reads a cast of it.
//
//	P float32 ─▶ Cast ─▶ P in half ─▶ what read it     P.grad ◀─ Cast ◀─ gradient in half
//
// In a half type an update that is small beside its parameter is lost, the second moment
// of a small gradient is 0, and so is the eps that is to keep a division by it finite.

import (
	"encoding/binary"
	"math"

	"github.com/onnx-remat/remat/onnx"
)

// masters gives the parameters of a half type that the file holds the type float32.
func (e *engine) masters(params []*onnx.Value, reach map[*onnx.Value]bool, res *Result) error {
	var casts []*onnx.Node
	for _, p := range params {
		half := p.Type.DType
		if p.Init == nil || !half.IsHalf() {
			continue
		}
		t, err := widened(p.Init)
		if err != nil {
			return err
		}
		n := e.m.Graph.NewNode("", "Cast", p.Name+"/half", nil, []string{p.Name + "/half"}, onnx.IntAttr("to", int64(half)))
		n.Outputs[0].Type = p.Type
		e.m.Graph.ReplaceUses(p, n.Outputs[0])
		n.SetInput(0, p)
		p.Init, p.Type.DType = t, onnx.Float32
		reach[n.Outputs[0]] = true
		casts = append(casts, n)
	}
	if len(casts) > 0 {
		e.m.Graph.Nodes = append(casts, e.m.Graph.Nodes...)
		res.warn("parameters in half in the file: %d, trained in float32; the model computes with half copies of them", len(casts))
	}
	return nil
}

// widened is a half tensor in float32.
func widened(t *onnx.Tensor) (*onnx.Tensor, error) {
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	wide := make([]byte, 0, 2*len(data))
	for ; len(data) >= 2; data = data[2:] {
		bits := binary.LittleEndian.Uint16(data)
		x := math.Float32bits(onnx.Float16Value(bits))
		if t.DType() == onnx.BFloat16 {
			x = uint32(bits) << 16
		}
		wide = binary.LittleEndian.AppendUint32(wide, x)
	}
	w := onnx.NewTensor(onnx.Float32, t.Dims(), wide)
	w.Proto.Name = t.Proto.Name
	return w, nil
}
