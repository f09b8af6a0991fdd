package train

import (
	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// Accumulation is how many runs of a training graph make one update.
func Accumulation(g *onnx.Graph) int { return int(step.Accumulation(g)) }
