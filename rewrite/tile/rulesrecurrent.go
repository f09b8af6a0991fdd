package tile

// The rule of LSTM, GRU and RNN. Samples do not meet in them: the batch stands behind the time,
// and in what is returned behind the direction.

import (
	"errors"

	"github.com/onnx-remat/remat/onnx"
)

// recurrent divides sequences, their lengths, and states along the batch; weights are read whole.
func recurrent(r *Region, n *onnx.Node) (bool, error) {
	if n.Int("layout", 0) != 0 { // has no kernel
		return false, errors.New("its batch comes before the time")
	}
	axes := map[*onnx.Value]sharding{n.In(0): 1, n.In(4): 0, n.In(5): 1, n.Out(0): 2, n.Out(1): 1}
	weights := []*onnx.Value{n.In(1), n.In(2), n.In(3)}
	if n.Is("LSTM") {
		axes[n.In(6)], axes[n.Out(2)] = 1, 1
		weights = append(weights, n.In(7))
	}
	delete(axes, nil)
	if err := r.wouldSplit(weights...); err != nil {
		return false, err
	}
	return r.along(n, axes)
}
