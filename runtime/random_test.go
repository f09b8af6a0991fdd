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

// Every number of an input lies below what all of it indexes, whatever a column of it does, or
// what it is once it was clipped; a rewritten file, in which parts index, says so.
func TestIndexedBy(t *testing.T) {
	const tables = "init w float32[5,2] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]\ninit v float32[3,2] = [1, 2, 3, 4, 5, 6]\n" +
		"init zero int64[] = 0\ninit one int64[1] = [1]\ninit two int64[1] = [2]\ninit four int64[1] = [4]\n"
	for body, want := range map[string]int64{
		"y = Gather(w, ids)":                                                       5,
		"k = Clip(ids, zero)\ny = Gather(w, k)":                                    0,
		"c = Gather(ids, zero) {axis=0}\ny = Gather(v, c)":                         0,
		"c = Slice(ids, one, two)\ny = Gather(v, c)":                               0,
		"c = Slice(ids, one, four)\ny = Gather(v, c)":                              3,
		"a, b = Split(ids) {num_outputs=2}\ny = Gather(v, a)\nz = Gather(w, b)":    0,
		"a = Gather(ids, zero) {axis=0}\nz = Gather(v, a)\ny = Gather(w, ids)":     5,
		"e = Equal(ids, four)\nk = Where(e, zero, ids)\ny = Gather(w, k)":          5,
		"e = Equal(ids, four)\nk = Where(e, ids, zero)\ny = Gather(w, k)":          5,
		"e = Greater(ids, four)\nk = Where(e, zero, ids)\ny = Gather(w, k)":        0,
		"k = Reshape(ids, four)\nm = Unsqueeze(k, one)\ny = Gather(v, m) {axis=0}": 3,
	} {
		m, err := onnx.Parse("model ir=10 opset=21\ngraph g {\nin ids int64[4]\n" + tables + body + "\nout y float32\n}\n")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := infer.Model(m, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		ids := m.Graph.Value("ids")
		if got := IndexedBy(m, ids).Extent; got != want {
			t.Errorf("%d, want %d, of\n%s", got, want, body)
		}
		if err := DescribeFeeds(m); err != nil {
			t.Fatal(err)
		}
		described := feedsOf(m)["ids"]
		if described.Each != want || described.Below == 0 || want > 0 && described.Below > want {
			t.Errorf("described as %+v, want %d for each, of\n%s", described, want, body)
		}
	}
}
