package remat_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat"
)

// model is a small forward model with its loss: twenty linear layers.
var model = filepath.Join("testdata", "models", "mlp20.ts.onnx")

// The whole way: a training graph of a forward model, a plan within three quarters of its live
// peak, the rewritten graph, and a step of it that takes what was predicted.
func Example() {
	dir, err := os.MkdirTemp("", "remat")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	rt, err := remat.LoadRuntime("")
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()

	forward, err := remat.Open(model, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer forward.Close()
	train, err := forward.Derive(filepath.Join(dir, "train.onnx"), remat.DeriveOptions{Optimizer: "sgd"})
	if err != nil {
		log.Fatal(err)
	}
	defer train.Close()

	before, err := rt.Predict(train, remat.Settings{})
	if err != nil {
		log.Fatal(err)
	}
	plan, err := rt.Plan(ctx, train, remat.PlanOptions{Budget: remat.Budget{Live: before.LivePeak * 3 / 4}})
	if err != nil {
		log.Fatal(err)
	}
	small, err := plan.Rewrite(filepath.Join(dir, "small.onnx"))
	if err != nil {
		log.Fatal(err)
	}
	defer small.Close()

	session, err := rt.NewSession(small, remat.SessionOptions{LR: 1e-3})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	step, err := session.Step(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("within the budget:", plan.After.LivePeak <= before.LivePeak*3/4)
	fmt.Println("as predicted:", step.LivePeak == plan.After.LivePeak)
	// Output:
	// within the budget: true
	// as predicted: true
}

// digits are batches of random points, labelled by their largest coordinate.
type digits struct{}

func (digits) At(n int64) (map[string]remat.Tensor, error) {
	r := rand.New(rand.NewPCG(uint64(n), 0))
	x, y := make([]float32, 8*16), make([]int64, 8)
	for i := range x {
		if x[i] = r.Float32(); x[i] > x[i/16*16+int(y[i/16])] && i%16 < 10 {
			y[i/16] = int64(i % 16)
		}
	}
	return map[string]remat.Tensor{"x": remat.Float32s(x, 8, 16), "y": remat.Int64s(y, 8)}, nil
}

// A training that is stopped after half of its steps, and goes on to the same bits.
func ExampleRuntime_Train() {
	dir, err := os.MkdirTemp("", "remat")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := remat.LoadRuntime("")
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()
	forward, err := remat.Open(model, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer forward.Close()
	graph, err := forward.Derive(filepath.Join(dir, "train.onnx"), remat.DeriveOptions{Optimizer: "adamw", ClipNorm: 1})
	if err != nil {
		log.Fatal(err)
	}
	defer graph.Close()

	train := func(folder string, steps int64, resume bool) *remat.Training {
		done, err := rt.Train(context.Background(), graph, remat.TrainOptions{
			Schedule: remat.Schedule{Kind: "constant", LR: 1e-3, Warmup: 5, Steps: steps},
			Data:     digits{}, Dir: filepath.Join(dir, folder), Resume: resume,
		})
		if err != nil {
			log.Fatal(err)
		}
		return done
	}
	whole := train("whole", 60, false)
	train("parts", 30, false)
	parts := train("parts", 60, true)

	a, _ := os.ReadFile(whole.State)
	b, _ := os.ReadFile(parts.State)
	fmt.Println("the loss fell:", whole.LastLoss < whole.FirstLoss)
	fmt.Println("the same bits:", len(a) > 0 && bytes.Equal(a, b))
	// Output:
	// the loss fell: true
	// the same bits: true
}

// What a file reads and returns.
func ExampleOpen() {
	forward, err := remat.Open(model, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer forward.Close()
	for _, v := range forward.Inputs() {
		fmt.Println(v.Name, v.Type, v.Dims)
	}
	for _, v := range forward.Outputs() {
		fmt.Println(v.Name, v.Type, v.Dims)
	}
	// Output:
	// x float32 [8 16]
	// y int64 [8]
	// loss float32 []
	// logits float32 [8 10]
}

// A decoder that was exported to generate, with weights in four bits: it gets a loss, and
// low-rank pairs that are trained.
func ExampleGraph_WithLoss() {
	dir, err := os.MkdirTemp("", "remat")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	logits, err := remat.Open("testdata/models/genai/llama_int4.onnx", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer logits.Close()
	forward, err := logits.WithLoss(filepath.Join(dir, "model.onnx"), remat.LossOptions{Kind: "next-token"})
	if err != nil {
		log.Fatal(err)
	}
	defer forward.Close()
	for _, v := range forward.Inputs() {
		fmt.Println(v.Name)
	}
	graph, err := forward.Derive(filepath.Join(dir, "train.onnx"), remat.DeriveOptions{Adapters: []string{"*:r=4"}})
	if err != nil {
		log.Fatal(err)
	}
	defer graph.Close()
	fmt.Println(graph.FreeDims())
	// Output:
	// input_ids
	// attention_mask
	// labels
	// [batch_size sequence_length]
}

// A budget that no plan keeps is an error that has the least that one does.
func ExampleRuntime_Plan() {
	dir, err := os.MkdirTemp("", "remat")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	rt, err := remat.LoadRuntime("")
	if err != nil {
		log.Fatal(err)
	}
	defer rt.Close()
	forward, err := remat.Open(model, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer forward.Close()
	train, err := forward.Derive(filepath.Join(dir, "train.onnx"), remat.DeriveOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer train.Close()

	_, err = rt.Plan(context.Background(), train, remat.PlanOptions{Budget: remat.Budget{Live: 1000}})
	var unmet *remat.BudgetError
	if errors.As(err, &unmet) {
		fmt.Println("a budget of", unmet.Budget, "bytes: the least is more:", unmet.Least > unmet.Budget)
	}
	// Output:
	// a budget of 1000 bytes: the least is more: true
}

// The strategies, as PlanOptions takes them.
func ExampleStrategies() {
	for _, s := range remat.Strategies() {
		fmt.Println(s.Usage)
	}
	// Output:
	// none
	// sqrt
	// every=K
	// segments=K
	// layers=GLOB
	// full
	// selective
	// optimal
	// least
}
