package runtime

import (
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
)

// What an input indexes says what its integers lie below: of codes that a Reshape takes apart
// too.
func TestFeedLimit(t *testing.T) {
	for body, want := range map[string]int64{
		"init w float32[5,2] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\ny = Gather(w, ids)":          5,
		"init w float32[5,2] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\ny = Gather(w, ids) {axis=1}": 2,
		"init w float32[5] = [1, 2, 3, 4, 5]\nk = Abs(ids)\ny = Gather(w, k)":               0,
		"init c uint8[3,1,8] = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8]\ninit s float32[3,1] = [1, 2, 3]\ninit k int64[2] = [3, 8]\n" +
			"t = Reshape(c, k)\ny = com.microsoft.GatherBlockQuantized(t, ids, s) {bits=4, block_size=16, gather_axis=0, quantize_axis=1}": 3,
	} {
		m, err := onnx.Parse("model ir=10 opset=21 opset[com.microsoft]=1\ngraph g {\nin ids int64[4]\n" + body + "\nout y float32\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		if got := FeedLimit(m, m.Graph.Value("ids")); got != want {
			t.Errorf("%d, want %d, of\n%s", got, want, body)
		}
	}
}
