package step

import "github.com/onnx-remat/remat/onnx"

// Accumulation is how many runs of a training graph make one update: the N of
// step mod N, by which the graph tells whether an update is due; 1 where it does not
// accumulate.
func Accumulation(g *onnx.Graph) int64 {
	step := g.Value("step")
	if step == nil || !step.IsInput() {
		return 1
	}
	for _, u := range step.Uses() {
		if u.Index != 0 || !u.Node.Is("Mod") {
			continue
		}
		if by := u.Node.In(1); by != nil {
			if n, ok := by.Number(); ok && n >= 1 && n <= 1<<30 {
				return int64(n)
			}
		}
	}
	return 1
}
