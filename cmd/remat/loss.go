package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/rewrite/loss"
)

func lossCommand(e *env) *cli.Command {
	kinds, docs := loss.Kinds()
	return &cli.Command{
		Name: "loss", Usage: "adds a loss to a forward model that has none", ArgsUsage: "FWD.onnx",
		Description: "The labels are a new input, the loss an output in place of the others. Weights in\n" +
			"external files are referred to. " + strings.Join(docs, ";\n") + ".\n\n" +
			"Example: remat loss logits.onnx --kind next-token -o trainable.onnx",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the model to `OUT.onnx`"},
			&cli.StringFlag{Name: "kind", Usage: "the loss, `" + kinds + "`"},
			&cli.StringFlag{Name: "output", Usage: "the output that it is of, `NAME`; default: the only one of floats, or logits"},
			&cli.StringFlag{Name: "labels", Value: "labels", Usage: "`NAME` of the new input"},
			&cli.IntFlag{Name: "class-axis", Usage: "the axis of the classes, `N`, of a cross-entropy; default: that of the model's Softmax, or the second of two"},
			&cli.Int64Flag{Name: "ignore", Value: loss.Ignored, Usage: "the label that takes no part in a cross entropy, `N`"},
			&cli.StringSliceFlag{Name: "keep", Usage: "`GLOB,…`: outputs that stay"},
		},
		Action: func(c *cli.Context) error {
			path, err := argument(c, "forward model")
			if err != nil {
				return err
			}
			out, err := output(c)
			if err != nil {
				return err
			}
			o := loss.Options{Output: c.String("output"), Labels: c.String("labels"), Keep: splitList(c.StringSlice("keep")), Dims: e.dims}
			if !c.IsSet("kind") {
				return fmt.Errorf("loss needs --kind %s; see remat loss --help", kinds)
			}
			if o.Kind, err = loss.ParseKind(c.String("kind")); err != nil {
				return fmt.Errorf("--kind: %w", err)
			}
			if err := ofClasses(c, o.Kind); err != nil {
				return err
			}
			if c.IsSet("class-axis") {
				o.ClassAxis = new(c.Int("class-axis"))
			}
			o.Ignore = new(c.Int64("ignore"))
			return addLoss(e, path, out, o)
		},
	}
}

// ofClasses refuses flags that a kind of loss does not take.
func ofClasses(c *cli.Context, k loss.Kind) error {
	if c.IsSet("class-axis") && k != loss.CrossEntropy {
		return fmt.Errorf("--class-axis: %s has none to choose", k)
	}
	if c.IsSet("ignore") && k != loss.CrossEntropy && k != loss.NextToken {
		return fmt.Errorf("--ignore: %s leaves no label out", k)
	}
	return nil
}

// withLoss is the document of loss --json.
type withLoss struct {
	Model      string      `json:"model"`
	Loss       string      `json:"loss"`
	Prediction string      `json:"prediction"`
	Labels     string      `json:"labels"`
	LabelsType string      `json:"labels_type"`
	Through    report.Text `json:"through"`
	Empty      []string    `json:"empty"`
	Dropped    []string    `json:"dropped"`
}

// addLoss writes the model at path with a loss to out.
func addLoss(e *env, path, out string, o loss.Options) error {
	src, err := e.loadFor(path, out)
	if err != nil {
		return err
	}
	r, err := src.WithLoss(out, o, e.passed)
	if err != nil {
		return err
	}
	if e.json {
		d := withLoss{Model: out, Loss: r.Loss, Prediction: r.Prediction, Labels: r.Labels.Name, LabelsType: r.Labels.Type.String(), Through: report.Text(r.Through), Empty: append([]string{}, r.Empty...), Dropped: append([]string{}, r.Dropped...)}
		return report.WriteJSON(e.stdout, d)
	}
	e.say("%s: %s %s of %s, labels in the input %s, %s", out, o.Kind, r.Loss, r.Prediction, r.Labels.Name, r.Labels.Type)
	if r.Through != "" {
		e.say("%s is made by a %s: the loss is of what that reads", r.Prediction, r.Through)
	}
	if len(r.Empty) > 0 {
		e.say("without a past, which is empty in training: %s", some(r.Empty))
	}
	if len(r.Dropped) > 0 {
		e.say("outputs that are gone: %s", some(r.Dropped))
	}
	return nil
}
