package remat_test

import (
	"context"
	"strings"
	"testing"

	"github.com/onnx-remat/remat"
	"github.com/onnx-remat/remat/onnx"
)

// normalizing is a small forward model that normalizes by its batch.
const normalizing = `model ir=10 opset=20
graph g {
  in x float32[8,16]
  in y int64[8]
  init w float32[16,2] = [0.5,-0.5,0.25,1,1,0.5,-1,0.25,-0.25,0.5,1,0.5,0.5,0.25,-0.5,1,0.5,-0.5,0.25,1,1,0.5,-1,0.25,-0.25,0.5,1,0.5,0.5,0.25,-0.5,1]
  init s float32[2] = [1, 2]
  init b float32[2] = [0.5, -1]
  init m float32[2] = [0, 0]
  init v float32[2] = [1, 1]
  z = MatMul(x, w)
  n = BatchNormalization(z, s, b, m, v) {training_mode=1}
  k = Concat(n, n, n, n, n) {axis=1}
  loss = SoftmaxCrossEntropyLoss(k, y)
  out loss float32[]
}
`

// openedText is the runtime and a model that a text describes, in a folder.
func openedText(t *testing.T, text string) (rt *remat.Runtime, g *remat.Graph, dir string) {
	t.Helper()
	rt, err := remat.LoadRuntime("")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { rt.Close() })
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	if err := m.Save(dir + "/m.onnx"); err != nil {
		t.Fatal(err)
	}
	if g, err = remat.Open(dir+"/m.onnx", nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return rt, g, dir
}

// TestTrainNothing: running statistics that move by themselves are no training, but with
// an optimizer they are among what a session goes on with.
func TestTrainNothing(t *testing.T) {
	rt, forward, dir := openedText(t, normalizing)
	o := remat.TrainOptions{Schedule: remat.Schedule{Kind: "constant", LR: 1e-3, Steps: 2}, Data: digits{}}
	for _, optimizer := range []string{"", "sgd"} {
		graph, err := forward.Derive(dir+"/t"+optimizer+".onnx", remat.DeriveOptions{Optimizer: optimizer})
		if err != nil {
			t.Fatal(err)
		}
		defer graph.Close()
		_, err = rt.Train(context.Background(), graph, o)
		switch {
		case optimizer == "" && (err == nil || !strings.Contains(err.Error(), "updates nothing")):
			t.Errorf("without an optimizer: %v", err)
		case optimizer != "" && err != nil:
			t.Errorf("%s: %v", optimizer, err)
		}
		feeds, _ := digits{}.At(0)
		s, err := rt.NewSession(graph, remat.SessionOptions{Feeds: feeds, LR: 1e-3})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		var moved [][]byte
		for range 2 {
			step, err := s.Step(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			moved = append(moved, append([]byte(nil), step.Outputs["v.new"].Data...))
		}
		if len(moved[0]) == 0 || string(moved[0]) == string(moved[1]) {
			t.Errorf("%q: the running variance is %v after one step and %v after two", optimizer, moved[0], moved[1])
		}
	}
}
