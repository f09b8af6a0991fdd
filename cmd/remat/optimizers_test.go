package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/rewrite/optim"
)

// TestEveryOptimizer trains with each optimizer of the table, as derived, rewritten,
// and in half with loss scaling: the measured peak is the predicted one to the byte.
func TestEveryOptimizer(t *testing.T) {
	dir := newFolder(t)
	do := func(args ...string) []byte {
		t.Helper()
		for i, a := range args {
			if strings.HasSuffix(a, ".onnx") {
				args[i] = dir.at(a)
			}
		}
		return dir.do(args...)
	}
	do("model", "mlp", "--layers", "4", "--hidden", "48", "--batch", "8", "-o", "m.onnx")
	for _, k := range optim.Kinds() {
		for _, more := range [][]string{nil, {"--weight-decay", "0.01", "--clip-norm", "1", "--clip-by", "previous"}, {"--accumulate", "2"}} {
			do(append([]string{"grad", "m.onnx", "-o", "t.onnx", "--optimizer", string(k)}, more...)...)
			promised := map[string]int64{}
			for file, how := range map[string][]string{"r.onnx": nil, "h.onnx": {"--precision", "fp16"}} {
				var doc struct {
					Peak int64 `json:"peak_bytes_after"`
				}
				if err := json.Unmarshal(do(append([]string{"rewrite", "t.onnx", "-o", file, "--strategy", "optimal", "--json", "--quiet"}, how...)...), &doc); err != nil {
					t.Fatal(err)
				}
				promised[file] = doc.Peak
			}
			for _, file := range []string{"t.onnx", "r.onnx", "h.onnx"} {
				var doc struct {
					Memory struct {
						Measured  int64 `json:"live_peak_bytes"`
						Predicted int64 `json:"predicted_live_peak_bytes"`
					}
				}
				if err := json.Unmarshal(do("run", file, "--steps", "2", "--lr", "1e-3", "--json", "--quiet"), &doc); err != nil {
					t.Fatal(err)
				}
				if peak, ok := promised[file]; ok && doc.Memory.Measured != peak {
					t.Errorf("%s %v, %s: measured %d, rewrite promised %d", k, more, file, doc.Memory.Measured, peak)
				}
				if doc.Memory.Measured == 0 || doc.Memory.Measured != doc.Memory.Predicted {
					t.Errorf("%s %v, %s: measured %d, predicted %d", k, more, file, doc.Memory.Measured, doc.Memory.Predicted)
				}
			}
		}
	}
}
