package pipeline

import (
	"fmt"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/quantize"
)

// narrow is the SGD step of gpt2-tiny whose second layer is trained and whose other
// weights, the head that is the embedding among them, are quantized.
func narrow(t *testing.T, kind quantize.Kind, dims map[string]int64) *onnx.Model {
	t.Helper()
	d, err := fitSource(t, "gpt2-tiny").Derive(DeriveOptions{
		Grad: grad.Options{Params: []string{"transformer.h.1.*"}, Dims: dims}, Update: optim.Defaults(optim.SGD), Quantize: kind,
	})
	if err != nil {
		t.Fatal(err)
	}
	return d.Model
}

// TestWideCopiesInSlices: where the loss is computed in slices, so is the wide copy of
// the head, forward and backward, and the step holds less. At every level of ONNX Runtime
// it holds what was predicted, and so it does once its file is planned anew.
func TestWideCopiesInSlices(t *testing.T) {
	e, inSlices := engine(t), quantize.Limits{Over: 64 << 10, Most: 32 << 10}
	dims := map[string]int64{"batch": 2, "seq": 16}
	for _, kind := range []quantize.Kind{quantize.Int8, quantize.Int4} {
		for _, strategy := range []string{"none", "full", "optimal"} {
			t.Run(fmt.Sprint(kind, " ", strategy), func(t *testing.T) {
				o := Options{Dims: dims, Divisions: Divisions{Chunk: Parts(4)}}
				whole := runAsPredicted(t, e, narrow(t, kind, dims), o, strategy)
				o.wide = &inSlices
				for _, level := range []int{0, 1, 99} {
					got, file := runAtLevel(t, e, narrow(t, kind, dims), o, strategy, level)
					if done := strings.Join(file.Applied(), ""); !strings.Contains(done, "8 products over slices of a frozen weight") {
						t.Errorf("level %d: %s", level, done)
					}
					// full chooses what it keeps by layers, not by the peak
					if strategy != "full" && got.LivePeakBytes >= whole.LivePeakBytes {
						t.Errorf("level %d: %d bytes live in slices, %d whole", level, got.LivePeakBytes, whole.LivePeakBytes)
					}
					if level == 1 {
						runAtLevel(t, e, file.Model, Options{Dims: dims}, strategy, level)
					}
				}
			})
		}
	}
}
