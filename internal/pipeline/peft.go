package pipeline

// Low-rank pairs as PEFT reads them: a folder with
//
//	adapter_model.safetensors  base_model.model.MODULE.lora_A.weight [r,in]
//	                           base_model.model.MODULE.lora_B.weight [out,r]
//	adapter_config.json        rank, alpha, and which modules these are
//
// https://huggingface.co/docs/peft/developer_guides/checkpoint. MODULE is a path from
// the module that PEFT is given; an export of a wrapper around that one has names that
// begin with the wrapper's attribute, which is cut off.

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
)

// moduleOf is the module of a layer, "" for none: of a tied weight, which bears the name of
// one of its readers, that of the product.
func moduleOf(l grad.Layer) string {
	if l.Tied() {
		return l.Module()
	}
	return holderOf(l.Name)
}

// holderOf is the module that holds a parameter of PyTorch's, which is its weight; "" where
// it is another.
func holderOf(parameter string) string {
	module, ok := strings.CutSuffix(parameter, ".weight")
	if !ok {
		return ""
	}
	return module
}

// peftConfig is PEFT's LoraConfig, as far as it says what cannot be seen in the tensors.
type peftConfig struct {
	Type         string             `json:"peft_type"`
	Task         *string            `json:"task_type"`
	Base         *string            `json:"base_model_name_or_path"`
	Targets      []string           `json:"target_modules"`
	Rank         int64              `json:"r"`
	Alpha        float64            `json:"lora_alpha"`
	Ranks        map[string]int64   `json:"rank_pattern"`
	Alphas       map[string]float64 `json:"alpha_pattern"`
	Dropout      float64            `json:"lora_dropout"`
	FanInFanOut  bool               `json:"fan_in_fan_out"`
	Bias         string             `json:"bias"`
	Inference    bool               `json:"inference_mode"`
	Init         bool               `json:"init_lora_weights"`
	SavedModules []string           `json:"modules_to_save"`
}

// Write writes the pairs into a folder, which is made if its own folder is there. Strip
// is cut off the front of modules.
func (t *TrainedPairs) Write(dir, strip string) error {
	modules := make([]string, len(t.List))
	for i, p := range t.List {
		if p.Module == "" {
			return fmt.Errorf("%s: PEFT has pairs of modules, and the file does not say which one multiplies by this: merge it into the model with -o alone", p.Layer.Name)
		}
		var ok bool
		if modules[i], ok = strings.CutPrefix(p.Module, strip); !ok {
			return fmt.Errorf("--strip-prefix %q: module %s does not begin with it", strip, p.Module)
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	var names []string
	tensors := map[string]*onnx.Tensor{}
	for i, p := range t.List {
		key := "base_model.model." + modules[i]
		a, b := key+".lora_A.weight", key+".lora_B.weight"
		names = append(names, a, b)
		tensors[a], tensors[b] = p.Turned(p.Layer.In, p.Layer.Out)
	}
	text, err := json.MarshalIndent(t.config(modules), "", "  ")
	if err != nil {
		return err
	}
	return onnx.Together(func(files *onnx.Outputs) error {
		weights := filepath.Join(dir, "adapter_model.safetensors")
		if _, err := WriteTensors(files, weights, names, tensors, map[string]string{"format": "pt"}); err != nil {
			return err
		}
		return files.Write(filepath.Join(dir, "adapter_config.json"), append(text, '\n'))
	})
}

// config describes the pairs of modules: the first one's rank and alpha, and others as
// exceptions.
func (t *TrainedPairs) config(modules []string) peftConfig {
	c := peftConfig{
		Type: "LORA", Targets: targets(modules, t.modules), Rank: t.List[0].Rank, Alpha: t.List[0].Alpha,
		Ranks: map[string]int64{}, Alphas: map[string]float64{}, Bias: "none", Inference: true, Init: true, FanInFanOut: true,
	}
	for i, p := range t.List {
		key := regexp.QuoteMeta(modules[i])
		if p.Rank != c.Rank {
			c.Ranks[key] = p.Rank
		}
		if p.Alpha != c.Alpha {
			c.Alphas[key] = p.Alpha
		}
		// A weight that an exporter transposed ahead bears no name of a module's.
		c.FanInFanOut = c.FanInFanOut && !p.Layer.Transposed && p.Layer.Weight.Name == p.Layer.Name
	}
	return c
}

// targets are the last parts of the modules' names where no other linear layer ends in
// one of them, else the whole names.
func targets(modules, layers []string) []string {
	last := func(module string) string { return module[strings.LastIndexByte(module, '.')+1:] }
	var ends []string
	for _, m := range modules {
		if !slices.Contains(ends, last(m)) {
			ends = append(ends, last(m))
		}
	}
	adapted := 0
	for _, l := range layers {
		if slices.Contains(ends, last(l)) {
			adapted++
		}
	}
	if adapted > len(modules) {
		return modules
	}
	return ends
}
