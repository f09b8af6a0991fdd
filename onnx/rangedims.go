package onnx

// Sizes of inner dimensions that PyTorch's exporter names, though the exported program allows one
// size alone: a mask as long as the longest of the lengths that were fed, before it meets values of
// that length. What torch.export knows of each name is in the metadata:
//
//	{u0: VR[9, 9], u1: VR[2, int_oo]}

import (
	"regexp"
	"slices"
	"strconv"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

const rangesKey = "pkg.torch.export.ExportedProgram.range_constraints"

// oneSize is a name whose range holds one number.
var oneSize = regexp.MustCompile(`\b(\w+): VR\[(\d+), (\d+)\]`)

// settleDims gives the dimensions of what nodes make the sizes that the exported program allows
// alone. Those that inputs have are left to who feeds them.
func (m *Model) settleDims() {
	sizes := map[string]int64{}
	for _, props := range [][]*pb.StringStringEntryProto{m.Graph.Proto.GetMetadataProps(), m.Proto.GetMetadataProps()} {
		text, _ := Property(props, rangesKey)
		for _, f := range oneSize.FindAllStringSubmatch(text, -1) {
			if n, err := strconv.ParseInt(f[2], 10, 64); err == nil && f[2] == f[3] {
				sizes[f[1]] = n
			}
		}
	}
	for name := range m.Graph.InputSymbols() {
		delete(sizes, name)
	}
	if len(sizes) == 0 {
		return
	}
	for _, v := range m.Graph.values {
		if v.IsInput() || v.Type.IsStatic() {
			continue
		}
		shape := slices.Clone(v.Type.Shape) // that of the file stays in v.loaded
		for i, d := range shape {
			if d = d.Subst(sizes); d.Known() {
				shape[i] = d
			}
		}
		v.Type.Shape = shape
	}
}
