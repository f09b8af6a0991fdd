package predict

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// Whatever a graph says, prediction ends without a panic, and what it says of
// the peak agrees with its own trace.
func FuzzPredict(f *testing.F) {
	for seed := range uint64(6) {
		m, err := newGrower(seed).grow(4 + int(seed)*3)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(m.Text())
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := onnx.Parse(text)
		if err != nil {
			return
		}
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			return
		}
		p, err := Predict(m, Options{Threads: 2})
		if err != nil {
			return
		}
		var live, peak int64
		for _, e := range p.Trace.Events {
			if e.Alloc {
				live += e.Bytes
			} else {
				live -= e.Bytes
			}
			peak = max(peak, live)
		}
		if peak != p.LivePeak || live < 0 {
			t.Fatalf("peak %d, the events say %d and end at %d", p.LivePeak, peak, live)
		}
	})
}
