package infer

// Operators of ai.onnx.ml that prepare features and pick labels, as scikit-learn's exporter
// writes them around a network.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
)

const ml = "ai.onnx.ml"

var mlOperators = []row{
	{ml, "ArrayFeatureExtractor", 1, 2, ranked(extractFeatures), nil, "X with as many features as Y has indices"},
	{ml, "Binarizer", 1, 1, same, nil, "like X"},
	{ml, "Imputer", 1, 1, same, nil, "like X"},
	{ml, "Normalizer", 1, 1, sameAs(onnx.Float32), nil, "float32 like X"},
	{ml, "Scaler", 1, 1, sameAs(onnx.Float32), nil, "float32 like X"},
}

// extractFeatures: the last axis of X is as long as Y has elements; a vector becomes a row.
func extractFeatures(c *ctx, s onnx.Shape) error {
	if len(s) == 0 {
		return fmt.Errorf("input 0 is a scalar")
	}
	count := onnx.Dim{}
	if y, ok := c.shape(1); ok {
		count = y.Elements()
	}
	before := s[:len(s)-1]
	if len(s) == 1 {
		before = onnx.StaticShape(1)
	}
	c.set(0, c.dtype(0), splice(before, len(before), len(before), count))
	return nil
}
