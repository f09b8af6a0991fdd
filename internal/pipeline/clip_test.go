package pipeline

import (
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// TestClipBy: clipped by its own norm or by that of the step before, no gradient
// waits for the others. The file reaches its predicted peak to the byte, which
// is that of the step without clipping but for scalars and sums over rows; the
// norm of all gradients of the step keeps them all.
func TestClipBy(t *testing.T) {
	e := engine(t)
	for _, c := range []struct {
		model  string
		kind   optim.Kind
		change func(*models.Config)
	}{
		{"heavy", optim.SGD, func(c *models.Config) { c.Layers, c.Hidden, c.Batch = 6, 96, 4 }},
		{"mlp", optim.AdamW, func(c *models.Config) { c.Layers, c.Hidden, c.Batch = 6, 64, 16 }},
	} {
		for _, level := range []int{0, 1, 99} {
			t.Run(fmt.Sprintf("%s %s at %d", c.model, c.kind, level), func(t *testing.T) {
				peak := func(norm float64, by optim.Clip) int64 {
					o := optim.Defaults(c.kind)
					o.ClipNorm, o.ClipBy = norm, by
					m := zooUpdated(t, c.model, o, c.change)
					return runPlanned(t, e, m, Options{OptLevel: level}, "none").peaks[0]
				}
				plain, global := peak(0, ""), peak(0.1, optim.ClipGlobal)
				for _, by := range []optim.Clip{optim.ClipParameter, optim.ClipPrevious} {
					if got := peak(0.1, by); got > plain+plain/16 { // orders of so small a step differ by so much
						t.Errorf("clipped by %s it holds %d bytes, without clipping %d", by, got, plain)
					}
				}
				if global < plain+plain/2 {
					t.Errorf("clipped by the norm of all gradients it holds %d bytes, without clipping %d", global, plain)
				}
			})
		}
	}
}

// TestClippedRows: an update is computed in slices where its gradient's norm is asked for
// too, be it to clip or to be returned: the norm's squares are summed slice by slice.
func TestClippedRows(t *testing.T) {
	e := engine(t)
	large := func(c *models.Config) {
		c.Layers, c.Hidden, c.Heads, c.Vocab, c.Seq, c.Batch = 2, 64, 2, 4000, 32, 1
	}
	for _, kind := range []optim.Kind{optim.SGD, optim.AdamW} {
		for _, by := range []optim.Clip{"", optim.ClipGlobal, optim.ClipParameter, optim.ClipPrevious} {
			t.Run(fmt.Sprintf("%s by %q", kind, by), func(t *testing.T) {
				o := optim.Defaults(kind)
				o.Norm = true
				if by != "" {
					o.ClipNorm, o.ClipBy = 0.1, by
				}
				m := zooUpdated(t, "gpt2", o, large)
				plain := runPlanned(t, e, m, Options{OptLevel: 1}, "full")
				got := runPlanned(t, e, m, Options{OptLevel: 1, Divisions: Divisions{Rows: auto, Chunk: auto}}, "full")
				if saved := plain.peaks[0] - got.peaks[0]; saved < plain.peaks[0]/8 {
					t.Errorf("live peak %d, plain %d", got.peaks[0], plain.peaks[0])
				}
				alikeOutputs(t, plain, got, 1e-5)
			})
		}
	}
}
