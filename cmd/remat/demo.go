package main

// The main job from nothing to the report, with what is built in:
//
//	zoo or your file ─▶ grad ─▶ plan, rewrite, once for each variant ─▶ compare ─▶ report
//
// GPT-2 reads the beginning of Lewis Carroll's "Alice's Adventures in
// Wonderland" (1865), tokenized with its own vocabulary.

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/precision"
	"github.com/onnx-remat/remat/rewrite/precision/kernels"
	remat "github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/train/data"
)

//go:embed demo/alice.txt
var demoText string

// demoSeq is the length in tokens from which on GPT-2 124M's activations are
// its peak where the update is in the graph. Below, it is the gradient of the
// tied embedding and what its update needs, 154 MB each, whatever the plan.
const demoSeq = 512

// What the demo trains with: it keeps no state, so that five graphs with
// parameters of their own find room beside each other.
const demoOptimizer = optim.Lightest

// demoOverhead bounds what the optimal plan computes again, as a share of the step's work,
// where no budget is given.
var demoOverhead = 0.2

// demoOwnRate is fed to a training graph of the user's that takes a rate.
const demoOwnRate = 1e-3

// Steps of each variant where none are asked for: enough for a curve of losses
// and a median of times.
var demoPace = pace{fewest: 3, most: 6, enough: 40 * time.Second}

type demoOptions struct {
	model, file    string // from the zoo, or the user's
	dir            string
	budget         string
	weights        string
	seed           uint64
	steps          int
	layers, length int64
	batch          int64
	optimizer      optim.Kind
	chosen         bool // the optimizer, by the user
	limit          time.Duration
	memory         int64 // --memory-limit, in bytes
}

func demoCommand(e *env) *cli.Command {
	return &cli.Command{
		Name: "demo", Usage: "runs the whole pipeline on GPT-2, or on your model", ArgsUsage: "[M.onnx]",
		Description: "Writes everything into a folder and ends with one HTML page. GPT-2 reads a page of\n" +
			"\"Alice's Adventures in Wonderland\"; your own model, a forward or a training\n" +
			"graph, gets random values by the seed.\n\n" +
			"Example: remat demo --model gpt2-tiny --seq 64 -o demo",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "o", Value: "remat-demo", Usage: "the `FOLDER` to write to"},
			&cli.StringFlag{Name: "model", Value: "gpt2", Usage: "a built-in model, `NAME`"},
			&cli.Int64Flag{Name: "layers", Usage: "layers, `N`; default: the model's own"},
			&cli.Int64Flag{Name: "seq", Usage: "tokens, `N`; default: 512 for GPT-2, otherwise the model's own"},
			&cli.Int64Flag{Name: "batch", Value: 1, Usage: "samples, `N`"},
			&cli.StringFlag{Name: "weights", Usage: "take the weights from `F.safetensors`"},
			&cli.Uint64Flag{Name: "seed", Usage: "seed of the weights, `N`"},
			&cli.StringFlag{Name: "budget", Usage: "bound for the optimal plan, `SIZE`, such as 2GiB or 60%; default: the least peak with at most 20 % more work"},
			&cli.StringFlag{Name: "optimizer", Value: string(demoOptimizer), Usage: "`" + optimizerWords() + "`: the update in the graph; none returns the gradients"},
			timeLimitFlag(), memoryLimitFlag(),
			&cli.IntFlag{Name: "steps", Usage: "steps of each variant, `N`; default: as many as are quick"},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Len() > 1 {
				return fmt.Errorf("remat demo: want one model file at most, got %d arguments; see remat demo --help", c.Args().Len())
			}
			if c.Int("steps") < 0 || c.IsSet("steps") && c.Int("steps") == 0 {
				return fmt.Errorf("--steps %d: want at least 1", c.Int("steps"))
			}
			o, err := readDemoOptions(e, c)
			if err != nil {
				return err
			}
			if err := e.canRun(); err != nil {
				return err
			}
			return demo(e, o)
		},
	}
}

// demoGiven is a copy of the user's model, where files in the folder cannot refer to its weights.
const demoGiven = "given.onnx"

func readDemoOptions(e *env, c *cli.Context) (o demoOptions, err error) {
	o = demoOptions{
		model: c.String("model"), file: c.Args().First(), dir: c.String("o"), budget: c.String("budget"),
		weights: c.String("weights"), seed: c.Uint64("seed"), steps: c.Int("steps"),
		layers: c.Int64("layers"), length: c.Int64("seq"), batch: c.Int64("batch"), chosen: c.IsSet("optimizer"),
	}
	if o.file != "" {
		for _, flag := range []string{"model", "layers", "seq", "batch", "weights"} {
			if c.IsSet(flag) {
				return o, fmt.Errorf("--%s applies only to built-in models, not to %s", flag, o.file)
			}
		}
	}
	if o.limit, err = readTimeLimit(c); err != nil {
		return o, err
	}
	if o.memory, err = readMemoryLimit(e, c); err != nil {
		return o, err
	}
	if o.optimizer, err = optim.ParseKind(c.String("optimizer")); err != nil {
		return o, fmt.Errorf("--optimizer: %w", err)
	}
	return o, nil
}

// A stage tells what is being done and how long it took.
func (e *env) stage(what string, do func() error) error {
	bar := e.progress(-1, what)
	start := time.Now()
	err := do()
	bar.Finish()
	if err == nil {
		err = e.interrupted()
	}
	if err == nil {
		e.say("%-36s %6.1f s", what, time.Since(start).Seconds())
	}
	return err
}

// demo goes the whole way: the forward model, its training graph, its variants, and the
// comparison of them all.
func demo(e *env, o demoOptions) (err error) {
	_, before := os.Lstat(o.dir)
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return fmt.Errorf("cannot create %s: %w", o.dir, err)
	}
	defer func() {
		if err != nil && errors.Is(before, fs.ErrNotExist) && os.Remove(o.dir) != nil { // it is not empty
			e.note("%s: the files that were complete stay", o.dir)
		}
	}()
	feeds := e.sessionOptions()
	feeds.Seed, feeds.ProfileAside, feeds.MemoryLimit = o.seed, true, o.memory
	forward := o.file
	if forward == "" {
		forward = filepath.Join(o.dir, o.model+".onnx")
		err := e.stage("model "+o.model, func() (err error) {
			feeds.Feeds, err = demoModel(o, forward)
			return err
		})
		if err != nil {
			return err
		}
	}
	train := filepath.Join(o.dir, "train.onnx")
	trains := false
	if o.file != "" {
		src, err := e.load(o.file)
		if err == nil {
			trains, err = src.Training(e.dims, nil)
		}
		if err == nil {
			forward, err = src.Within(o.dir, demoGiven)
		}
		if err != nil {
			return err
		}
	}
	if trains {
		e.say("  %s is a training graph already", o.file)
		train, feeds.LR = forward, demoOwnRate
	} else {
		if err := e.stage("derive the training graph", func() error { return demoTraining(e, &o, forward, train) }); err != nil {
			return err
		}
		feeds.LR = o.optimizer.Rate()
		e.dims, feeds.Dims = nil, nil // the derived graph has their numbers
	}
	variants, err := demoVariants(e, o, train)
	if err != nil {
		return err
	}
	return demoCompare(e, o, variants, feeds)
}

// demoTraining derives the training graph, with the update in it. Where that
// would change what may be no weight, and the user named no optimizer, the graph
// returns its gradients instead.
func demoTraining(e *env, o *demoOptions, forward, train string) error {
	derive := func() error {
		_, err := deriveTraining(e, forward, train, true, pipeline.DeriveOptions{Grad: grad.Options{Dims: e.dims}, Update: optim.Defaults(o.optimizer)})
		return err
	}
	err := derive()
	if _, ok := errors.AsType[*pipeline.UnclearError](err); ok && !o.chosen {
		e.say("  no update in the graph: %v", err)
		o.optimizer = optim.None
		err = derive()
	}
	return err
}

// demoModel writes the zoo's model and returns what it reads.
func demoModel(o demoOptions, path string) (map[string]remat.Tensor, error) {
	row, err := models.Find(o.model)
	if err != nil {
		return nil, err
	}
	cfg := row.Default
	text := strings.HasPrefix(o.model, "gpt2")
	if o.length == 0 && o.model == "gpt2" {
		o.length = demoSeq
	}
	given := map[string]int64{"layers": o.layers, "seq": o.length, "batch": o.batch}
	for _, size := range sizesOf(&cfg) {
		n := given[size.flag]
		if n < 0 {
			return nil, fmt.Errorf("--%s %d: must not be negative", size.flag, n)
		}
		if n > 0 && (*size.of > 0 || text) {
			*size.of = n
		}
	}
	cfg.Seed = o.seed
	built, err := row.Build(cfg)
	if err != nil {
		return nil, err
	}
	if o.weights != "" {
		err = built.SaveWith(path, o.weights)
	} else {
		err = built.Save(path)
	}
	if err != nil || !text {
		return nil, err
	}
	return demoTokens(cfg)
}

// demoTokens are the first tokens of the text, as ids and as labels. The text
// begins anew where it ends; in a smaller vocabulary an id is taken modulo its
// size.
func demoTokens(cfg models.Config) (map[string]remat.Tensor, error) {
	ids, err := data.EncodeGPT2(demoText)
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 0, 8*cfg.Batch*cfg.Seq)
	for i := range int(cfg.Batch * cfg.Seq) {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(ids[i%len(ids)])%uint64(cfg.Vocab))
	}
	t := remat.Tensor{Type: onnx.Int64, Shape: []int64{cfg.Batch, cfg.Seq}, Data: raw}
	return map[string]remat.Tensor{"input_ids": t, "labels": t}, nil
}

// A demoVariant is one file that is compared.
type demoVariant struct {
	label, path string
	plan        *planned
}

// demoVariants writes the rewritten graphs. A budget that cannot be met is said
// and left out.
func demoVariants(e *env, o demoOptions, train string) ([]demoVariant, error) {
	half, err := halfHere(e)
	if err != nil {
		return nil, err
	}
	halfLabel := "optimal, fp16"
	if half.Emulate {
		halfLabel += " emulated"
	}
	best := planOptions{strategy: "optimal", budget: o.budget}
	bestLabel := "optimal, " + o.budget
	if o.budget == "" {
		best.overhead, bestLabel = &demoOverhead, "optimal"
	}
	out := []demoVariant{{label: "plain", path: train}}
	for _, v := range []struct {
		label, file string
		options     planOptions
		half        *precision.Options
	}{
		{bestLabel, "optimal.onnx", best, nil},
		{"sqrt", "sqrt.onnx", planOptions{strategy: "sqrt"}, nil},
		{"full", "full.onnx", planOptions{strategy: "full"}, nil},
		{halfLabel, "half.onnx", best, half},
	} {
		path := filepath.Join(o.dir, v.file)
		options := v.options
		options.limit, options.pipeline = o.limit, e.pipelineOptions()
		options.pipeline.Precision, options.pipeline.AsIs = v.half, v.half != nil // a search among parts takes most of a minute in half types
		var p *planned
		err := e.stage("plan and rewrite: "+v.label, func() (err error) {
			if p, err = planFile(e, train, path, options); err == nil && v.half != nil && v.half.Emulate {
				// A foreign graph is normalized by the provider itself, which may not be here.
				if nerr := predictNative(e, options, p); nerr != nil {
					e.say("  not predicted for CUDA: %v", nerr)
				}
			}
			return err
		})
		if _, ok := errors.AsType[*checkError](err); ok {
			e.say("  left out: %v", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		if p.limited != "" {
			e.say("  %s", p.limited)
		}
		for _, n := range p.document.Notes {
			if n.What == nativeNote {
				e.say("  %s: %s", n.What, n.Reason)
			}
		}
		out = append(out, demoVariant{v.label, path, p})
	}
	return out, nil
}

// nativeNote begins what is said of a half type that is emulated here.
const nativeNote = "emulated"

// predictNative notes what the same plan takes where the half type has kernels:
// emulation has the numbers of half precision and the memory of float32 beside
// the casts.
func predictNative(e *env, o planOptions, emulated *planned) error {
	native := *o.pipeline.Precision
	native.Emulate, native.Provider = false, kernels.CUDA
	o.pipeline.Precision, o.pipeline.Provider = &native, ort.CUDA
	p, err := makePlan(e, emulated.source, o)
	if err != nil {
		return err
	}
	reason := fmt.Sprintf("computes the numbers of %s in float32; with %s kernels on CUDA, the step takes %s (predicted)",
		native.To, native.To, units.Bytes(p.result.Peak))
	emulated.document.Notes = append(emulated.document.Notes, report.Note{What: nativeNote, Reason: report.Text(reason)})
	return nil
}

// demoCompare runs the variants beside each other and writes the report.
func demoCompare(e *env, o demoOptions, variants []demoVariant, feeds remat.Options) error {
	var paths []string
	co := compareOptions{
		steps: o.steps, pace: demoPace, title: "remat demo: " + o.model,
		html: filepath.Join(o.dir, "report.html"), png: filepath.Join(o.dir, "report.png"),
	}
	if o.file != "" {
		co.title = "remat demo: " + filepath.Base(o.file)
	}
	for _, v := range variants {
		paths = append(paths, v.path)
		co.labels = append(co.labels, v.label)
	}
	start := time.Now()
	doc, err := compareModels(e, paths, feeds, co)
	if doc == nil {
		return err
	}
	e.say("%-36s %6.1f s\n", "run and compare", time.Since(start).Seconds())
	for i, v := range variants {
		if v.plan != nil {
			doc.Models[i].Plan = &v.plan.document
			if i <= len(doc.Pairs) {
				doc.Pairs[i-1].TheorySaving = v.plan.document.TheorySaving
			}
		}
	}
	if werr := writeComparison(e, doc, co); err == nil {
		err = werr
	}
	if werr := writeJSONFile(filepath.Join(o.dir, "report.json"), doc.Brief()); err == nil {
		err = werr
	}
	e.say("\n%s shows all of it", co.html)
	return err
}
