// Program derives a training graph, plans within three quarters of its live peak,
// writes the graph that follows the plan and runs a step of it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat"
)

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatal(err)
	}
	return value
}

func main() {
	model, dir := os.Args[1], os.Args[2]
	rt := must(remat.LoadRuntime(""))
	defer rt.Close()
	forward := must(remat.Open(model, nil))
	train := must(forward.Derive(filepath.Join(dir, "train.onnx"), remat.DeriveOptions{Optimizer: "adamw"}))
	before := must(rt.Predict(train, remat.Settings{}))
	budget := remat.Budget{Live: before.LivePeak * 3 / 4}
	plan := must(rt.Plan(context.Background(), train, remat.PlanOptions{Budget: budget}))
	small := must(plan.Rewrite(filepath.Join(dir, "small.onnx")))
	session := must(rt.NewSession(small, remat.SessionOptions{LR: 1e-3}))
	defer session.Close()
	step := must(session.Step(context.Background()))
	fmt.Printf("loss %.2f, live peak %d predicted, %d measured, %d before\n", step.Loss, plan.After.LivePeak, step.LivePeak, before.LivePeak)
}
