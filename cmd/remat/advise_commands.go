package main

// What advise recommends as command lines, and as a recipe for remat train.

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/rewrite/quantize"
)

// file is the model's file, or the one that remat model writes.
func (a *adviceRun) file() string {
	if a.row != nil {
		return a.name + ".onnx"
	}
	return a.name
}

// commands lead from the model to a file that runs as was predicted.
func (a *adviceRun) commands(t *pipeline.Taken) []string {
	var list []string
	if a.row != nil {
		words := []string{"model", a.name}
		for _, flag := range widths {
			if a.c.IsSet(flag) {
				words = append(words, "--"+flag, fmt.Sprint(a.c.Int64(flag)))
			}
		}
		if words = append(words, "--batch", "0"); a.config.Seq > 0 {
			words = append(words, "--seq", fmt.Sprint(a.config.Seq))
		}
		list = append(list, commandLine(append(words, "-o", a.file())))
	}
	stem := strings.TrimSuffix(a.file(), filepath.Ext(a.file()))
	given, fit := a.file(), stem+".fit.onnx"
	var dims []string
	if len(t.Dims) > 0 {
		dims = []string{"--dim", strings.Join(dimList(t.Dims), ",")}
	}
	if !a.training {
		words := append([]string{"grad", given}, dims...)
		for _, f := range a.derivation(t) {
			words = append(words, f.words()...)
		}
		if t.Accumulate > 1 && !a.c.IsSet("accumulate") {
			words = append(words, "--accumulate", fmt.Sprint(t.Accumulate))
		}
		given, dims = stem+".train.onnx", nil
		list = append(list, commandLine(append(words, "-o", given)))
	}
	if t.Options.Strategy == pipeline.AsDerived {
		return a.ran(t, list, given)
	}
	words := append(append(a.globals(false), "rewrite", given), dims...)
	strategy := cmp.Or(t.Options.Strategy, "optimal")
	if !t.Fits && t.Document.Strategy != "" {
		strategy = t.Document.Strategy
	}
	if !t.Fits && strategy == "optimal" { // which misses the memory by least
		strategy = "least"
	}
	words = append(words, "--strategy", strategy)
	if t.Options.Pipeline.AsIs && strategy == "optimal" {
		words = append(words, "--chunk-loss", "off")
	}
	for _, d := range t.Options.Pipeline.Divisions.Asked() {
		words = append(words, "--"+d.Flag, d.String())
	}
	if t.Fits && t.Memory > 0 {
		words = append(words, "--budget-total", fmt.Sprint(t.Memory-t.Bytes+t.Total.Bytes()))
	}
	for _, f := range a.halves(t) {
		words = append(words, f.words()...)
	}
	return a.ran(t, append(list, commandLine(append(words, "-o", fit))), fit)
}

// ran adds the command that runs a file.
func (a *adviceRun) ran(t *pipeline.Taken, list []string, file string) []string {
	if a.e.onCUDA() && !a.e.rehearse {
		return list // where there may be no GPU to run it on
	}
	words := append(a.globals(true), "run", file)
	if t.Fits && !a.e.onCUDA() {
		words = append(words, "--memory-limit", a.memory())
	}
	return append(list, commandLine(words))
}

// globals are the global flags on which a prediction depends.
func (a *adviceRun) globals(running bool) (words []string) {
	for _, flag := range []string{"ort", "provider", "threads", "opt"} {
		if a.c.IsSet(flag) {
			words = append(words, "--"+flag, a.c.String(flag))
		}
	}
	if running && a.e.rehearse {
		if words = append(words, "--rehearse"); a.e.deviceMemory > 0 {
			words = append(words, "--device-memory", fmt.Sprint(a.e.deviceMemory))
		}
	}
	return words
}

// words are a flag as it is typed.
func (f flagValue) words() []string {
	switch v := f.value.(type) {
	case bool:
		if v {
			return []string{"--" + f.name}
		}
		return []string{"--" + f.name + "=false"}
	case []string:
		return []string{"--" + f.name, strings.Join(v, ",")}
	}
	return []string{"--" + f.name, fmt.Sprint(f.value)}
}

// halfName is the half type that advise tries: its range is float32's, so that no loss
// is scaled.
const halfName = "bf16"

// derivation are the flags of remat grad: those that were given, the optimizer, and what
// a measure changes.
func (a *adviceRun) derivation(t *pipeline.Taken) []flagValue {
	u := t.Options.Derive.Update
	list := []flagValue{{"optimizer", string(u.Kind)}}
	changed := u.Kind != a.options.Derive.Update.Kind
	given, _ := settingsOf(a.c)
	isSetting := func(name string) bool {
		return slices.ContainsFunc(optim.Settings(), func(s *optim.Setting) bool { return s.Name == name })
	}
	for _, f := range updateFlags() {
		name := f.Names()[0]
		i := slices.IndexFunc(given, func(g flagValue) bool { return g.name == name })
		if i < 0 || name == "optimizer" || name == "frozen" || name == "lora" || name == "quantize-frozen" || name == "keep-grads" || changed && isSetting(name) {
			continue
		}
		list = append(list, given[i])
	}
	if frozen := t.Options.Derive.Grad.Frozen; len(frozen) > 0 {
		list = append(list, flagValue{"frozen", frozen})
	}
	for _, s := range t.Options.Derive.Grad.Adapters {
		list = append(list, flagValue{"lora", s.String()})
	}
	if kind := t.Options.Derive.Quantize; kind != quantize.None {
		list = append(list, flagValue{"quantize-frozen", string(kind)})
	}
	if u.KeepGrads {
		list = append(list, flagValue{"keep-grads", true})
	}
	return list
}

// halves are the flags of a half type.
func (a *adviceRun) halves(t *pipeline.Taken) []flagValue {
	p := t.Options.Pipeline.Precision
	if p == nil {
		return nil
	}
	var list []flagValue
	if a.options.Pipeline.Precision != nil { // as it was given
		given, _ := settingsOf(a.c)
		for _, f := range precisionFlags() {
			if i := slices.IndexFunc(given, func(g flagValue) bool { return g.name == f.Names()[0] }); i >= 0 {
				list = append(list, given[i])
			}
		}
		return list
	}
	list = append(list, flagValue{"precision", halfName})
	if p.StashOnly {
		list = append(list, flagValue{"stash-only", true})
	}
	return list
}

// memory is the memory as it was asked for, or, of a device, in bytes.
func (a *adviceRun) memory() string {
	if text := strings.Join(strings.Fields(a.c.String("memory")), ""); text != "" {
		return text
	}
	return fmt.Sprint(a.options.Memory)
}

// trainFlags are those with which remat train does what is recommended: it finds the
// micro-batch and the plan again.
func (a *adviceRun) trainFlags(t *pipeline.Taken) []flagValue {
	list := []flagValue{{"memory", a.memory()}}
	if dims := a.options.Pipeline.Dims; len(dims) > 0 {
		list = append(list, flagValue{"dim", dimList(dims)})
	}
	if a.options.Batch > 0 {
		list = append(list, flagValue{"batch", a.options.Batch})
	}
	if !a.training {
		list = append(list, a.derivation(t)...)
	}
	return append(list, a.halves(t)...)
}

// recipe is the training as a recipe for remat train.
func (a *adviceRun) recipe(t *pipeline.Taken) ([]byte, error) {
	var global []flagValue
	for _, flag := range []string{"provider", "threads", "opt"} {
		if a.c.IsSet(flag) {
			global = append(global, flagValue{flag, a.c.Value(flag)})
		}
	}
	text, err := recipeOf("train", []string{a.file()}, append(global, a.trainFlags(t)...))
	if err != nil {
		return nil, err
	}
	head := fmt.Sprintf("# remat %s: %s, trained within %s. With data and a length it runs by\n#   remat train --config THIS.yaml%s --steps N -o DIR\n",
		version, a.name, units.Bytes(a.options.Memory), a.data())
	if a.row != nil {
		head += "# after\n#   " + a.commands(t)[0] + "\n"
	}
	return append([]byte(head), text...), nil
}

// train is the command line of the recipe.
func (a *adviceRun) train(t *pipeline.Taken) string {
	words := append(a.globals(false), "train", a.file())
	for _, f := range a.trainFlags(t) {
		words = append(words, f.words()...)
	}
	return commandLine(append(words, "-o", "run"))
}
