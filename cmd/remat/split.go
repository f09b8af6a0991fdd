package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/ranks"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/stage"
)

func splitCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "split", Usage: "cuts a training graph into the files of pipeline stages", ArgsUsage: "T.onnx",
		Description: "Each stage has a forward and a backward file. What a file makes and another one reads is\n" +
			"an output of the one and an input of the other; stages.json lists them, with what each\n" +
			"stage takes under both schedules.\n\n" +
			"Example: remat split train.onnx --stages 2 -o stages",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Usage: "write the files into the folder `DIR`"},
			&cli.IntFlag{Name: "stages", Usage: "how many stages, `K`"},
			&cli.StringFlag{Name: "balance", Value: string(stage.Memory), Usage: "`memory|time`: what the fullest stage is to have least of"},
			&cli.Int64Flag{Name: "micro-batches", Value: 8, Usage: "how many micro-batches, `M`, a step has in the peaks that are stated"},
			&cli.StringFlag{Name: "roles", Usage: "`F.json`: name loss, grad and new instead of detecting them"},
		},
		Action: func(c *cli.Context) error {
			path, err := argument(c, "training graph")
			if err != nil {
				return err
			}
			o, err := readSplit(e, c)
			if err != nil {
				return err
			}
			return split(e, path, c.String("o"), o)
		},
	}
}

// mostMicroBatches is far beyond what a step has.
const mostMicroBatches = 1 << 12

// readSplit reads the flags.
func readSplit(e *env, c *cli.Context) (o pipeline.SplitOptions, err error) {
	o.Stages, o.Balance, o.Micro = c.Int("stages"), stage.Balance(c.String("balance")), c.Int64("micro-batches")
	switch {
	case c.String("o") == "":
		return o, errors.New("remat split: missing -o DIR")
	case !c.IsSet("stages"):
		return o, errors.New("remat split: missing --stages K")
	case o.Stages < 2 || o.Stages > stage.MostStages:
		return o, fmt.Errorf("--stages %d: want 2 to %d", o.Stages, stage.MostStages)
	case o.Balance != stage.Memory && o.Balance != stage.Time:
		return o, fmt.Errorf("--balance %q: want memory or time", string(o.Balance))
	case o.Micro < 1 || o.Micro > mostMicroBatches:
		return o, fmt.Errorf("--micro-batches %d: want 1 to %d", o.Micro, mostMicroBatches)
	}
	o.Pipeline = e.pipelineOptions()
	o.Pipeline.Roles, err = readRoles(c.String("roles"))
	return o, err
}

// split writes the stages of a training graph.
func split(e *env, path, dir string, o pipeline.SplitOptions) (err error) {
	src, err := e.load(path)
	if err != nil {
		return err
	}
	if err := checkDims(e.dims, src); err != nil {
		return err
	}
	if err := allSized(src, e.dims, e.dims); err != nil {
		return err
	}
	engine, err := e.engine()
	if err != nil {
		return err
	}
	made := os.Mkdir(dir, 0o755)
	if made != nil && !errors.Is(made, fs.ErrExist) {
		return fmt.Errorf("folder of %s: %w", dir, onnx.PathCause(made))
	}
	doc, removed, err := pipeline.Split(engine, src, dir, o)
	if err != nil {
		if made == nil {
			os.Remove(dir) // if it is empty
		}
		return err
	}
	if len(removed) > 0 {
		e.note("%s: removed %s of the split that was there", dir, strings.Join(removed, ", "))
	}
	if e.json {
		return report.WriteJSON(e.stdout, doc)
	}
	t := report.Table{Columns: []string{"stage", ">parameters", ">state", ">sends", ">forward", ">backward", ">" + ranks.GPipe, ">" + ranks.OneForward}}
	for _, s := range doc.Stages {
		row := []string{fmt.Sprint(s.Stage), units.Bytes(s.ParameterBytes), units.Bytes(s.StateBytes), units.Bytes(s.SentBytes)}
		for _, f := range []*pipeline.StageFile{s.Forward, s.Backward} {
			var live *int64
			if f != nil {
				live = f.LivePeakBytes
			}
			row = append(row, report.BytesOr(live))
		}
		t.Rows = append(t.Rows, append(row, report.BytesOr(s.Peaks[ranks.GPipe].TotalBytes), report.BytesOr(s.Peaks[ranks.OneForward].TotalBytes)))
	}
	if err := t.Text(e.stdout); err != nil {
		return err
	}
	for _, s := range doc.Shared {
		e.say("%s is read by stages %v, and updated by stage %d", s.Name, s.Readers, s.Owner)
	}
	e.say("%s: %d stages, peaks with %d micro-batches a step", dir, len(doc.Stages), doc.MicroBatches)
	return nil
}
