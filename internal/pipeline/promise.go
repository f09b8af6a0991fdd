package pipeline

// A written file promises a peak, and places for what a step asks for. Tools that save it
// again may give its nodes another order, which is another schedule, or types to values
// that had none, which is another reuse of buffers; the metadata stay, and with them the
// promise. So beside it stands a hash of what it was made of (onnx.Model.Fingerprint).
//
// Weakness: a change that keeps the peak breaks the hash too; whoever finds it
// broken predicts anew, and compares.

import (
	"strconv"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/predict"
)

// PromiseKey is the metadata entry that holds the hash of the graph that the
// predictions are of.
const PromiseKey = "remat.predicted.graph"

// promised are the keys of what a file says of its step where that is predicted to the byte.
var promised = []string{PeakKey, PromiseKey, ReservedKey}

// SetPromise writes the predicted live peak of a model that is about to be
// saved. Changes to the graph after it break the promise. A step that is not predicted to the
// byte has none, nor that of the file that it was written from.
func SetPromise(m *onnx.Model, p *predict.Prediction) {
	if !p.Exact() {
		drop(m, promised...)
		return
	}
	m.SetMetadata(PeakKey, strconv.FormatInt(p.LivePeak, 10))
	m.SetMetadata(PromiseKey, m.Fingerprint())
}

// dropPromises takes off what a file promises of its step, of a model that becomes another step.
func dropPromises(m *onnx.Model) {
	drop(m, promised...)
	drop(m, SessionKey, runtime.SlabKey)
}

func drop(m *onnx.Model, keys ...string) {
	for _, key := range keys {
		m.DropMetadata(key)
	}
}

// setSlab writes where in one slab a step's requests lie, of a model whose promise was
// set. Without an exact prediction of a step on the host it has no such table, nor that
// of the file that it was written from.
func setSlab(m *onnx.Model, p *predict.Prediction, onHost bool) {
	m.DropMetadata(runtime.SlabKey)
	if !onHost || !p.Exact() {
		return
	}
	graph, _ := m.Metadata(PromiseKey)
	if text := runtime.SlabText(p.Slab(), graph); text != "" {
		m.SetMetadata(runtime.SlabKey, text)
	}
}
