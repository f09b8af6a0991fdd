package main

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models/safetensors"
)

// TestAdapters trains low-rank pairs of exports by both exporters: under each strategy
// the same bits, and the peak that was predicted; merged into the model they give the
// loss that the graph with the pairs has.
func TestAdapters(t *testing.T) {
	for _, c := range []struct {
		sample, feeds string
		pairs         int
	}{
		{"gpt2_tiny.dyn.onnx", "gpt2_tiny.dyn.npz", 8},             // Conv1D; the head is tied
		{"gpt2_tiny_mask.tseval.onnx", "gpt2_tiny_mask.ts.npz", 9}, // the head's weight was folded
	} {
		t.Run(c.sample, func(t *testing.T) {
			dir := newFolder(t)
			samples := filepath.Join("..", "..", "testdata", "models")
			model := filepath.Join(samples, c.sample)
			pairs := derivedPairs(t, dir, model)
			if len(pairs) != c.pairs {
				t.Errorf("%d pairs, want %d: %v", len(pairs), c.pairs, pairs)
			}
			checkStrategies(t, dir)
			checkMerged(t, dir, model, filepath.Join(samples, c.feeds))
			checkPEFT(t, dir.at("adapter"), len(pairs))
		})
	}
}

// derivedPairs derives t.onnx, and lists the weights that got a pair.
func derivedPairs(t *testing.T, dir folder, model string) (pairs []string) {
	t.Helper()
	var doc derivation
	read(t, dir.do("grad", model, "-o", dir.at("t.onnx"), "--lora", "*:r=3,alpha=6", "--optimizer", "adamw", "--json"), &doc)
	for _, p := range doc.Parameters {
		weight, isA := strings.CutSuffix(p, ".lora_A")
		if isA {
			pairs = append(pairs, weight)
		} else if !strings.HasSuffix(p, ".lora_B") {
			t.Errorf("%s is trained", p)
		}
	}
	if len(doc.Parameters) != 2*len(pairs) {
		t.Errorf("parameters %v", doc.Parameters)
	}
	return pairs
}

func read(t *testing.T, data []byte, doc any) {
	t.Helper()
	if err := json.Unmarshal(data, doc); err != nil {
		t.Fatal(err)
	}
}

func checkStrategies(t *testing.T, dir folder) {
	t.Helper()
	args := []string{"compare"}
	for _, s := range []string{"none", "full", "optimal"} {
		dir.do("rewrite", dir.at("t.onnx"), "-o", dir.at(s+".onnx"), "--strategy", s, "--quiet")
		args = append(args, dir.at(s+".onnx"))
	}
	var doc struct {
		Models []struct{ Memory map[string]int64 }
		Pairs  []struct {
			Same bool `json:"bit_identical"`
		}
	}
	read(t, dir.do(append(args, "--steps", "2", "--lr", "0.01", "--json", "--quiet")...), &doc)
	for i, m := range doc.Models {
		for _, field := range []string{"live_peak_bytes", "session_bytes", "reserved_bytes"} {
			if got, want := m.Memory[field], m.Memory["predicted_"+field]; got != want || field == "live_peak_bytes" && got == 0 {
				t.Errorf("%s: %s %d, predicted %d", args[i+1], field, got, want)
			}
		}
	}
	for _, p := range doc.Pairs {
		if !p.Same {
			t.Error("recomputation changes bits")
		}
	}
}

// losses runs a graph and returns the loss of each step.
func losses(t *testing.T, dir folder, args ...string) (list []float64) {
	t.Helper()
	var doc struct {
		Steps []struct{ Outputs struct{ Loss float64 } }
	}
	read(t, dir.do(append([]string{"run", "--json", "--quiet"}, args...)...), &doc)
	for _, s := range doc.Steps {
		list = append(list, s.Outputs.Loss)
	}
	return list
}

// checkMerged: the fourth step's loss is that of the model into which the pairs were
// merged after three.
func checkMerged(t *testing.T, dir folder, model, feeds string) {
	t.Helper()
	losses(t, dir, dir.at("t.onnx"), "--feeds", feeds, "--steps", "3", "--lr", "0.01", "--save", dir.at("s.safetensors"))
	four := losses(t, dir, dir.at("t.onnx"), "--feeds", feeds, "--steps", "4", "--lr", "0.01")
	dir.do("apply", dir.at("s.safetensors"), model, "-o", dir.at("merged.onnx"), "--adapter", dir.at("adapter"))
	merged, plain := losses(t, dir, dir.at("merged.onnx"), "--feeds", feeds)[0], losses(t, dir, model, "--feeds", feeds)[0]
	if math.Abs(merged/four[3]-1) > 1e-5 || math.Abs(plain/four[0]-1) > 1e-6 || math.Abs(plain/merged-1) < 1e-3 {
		t.Errorf("losses %v with pairs, %v merged, %v before", four, merged, plain)
	}
}

// checkPEFT: the folder holds a pair of [r,in] and [out,r] for each module, and a
// configuration that names them.
func checkPEFT(t *testing.T, dir string, pairs int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "adapter_config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Type    string `json:"peft_type"`
		R       int64
		Alpha   float64  `json:"lora_alpha"`
		Targets []string `json:"target_modules"`
	}
	read(t, text, &config)
	f, err := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if config.Type != "LORA" || config.R != 3 || config.Alpha != 6 || len(config.Targets) == 0 || len(f.Tensors) != 2*pairs {
		t.Errorf("%d tensors, %s", len(f.Tensors), text)
	}
	for _, x := range f.Tensors {
		name, isA := strings.CutSuffix(x.Name, ".lora_A.weight")
		if !isA {
			continue
		}
		b, ok := f.Lookup(name + ".lora_B.weight")
		module := name[strings.LastIndexByte(name, '.')+1:]
		if !ok || !strings.HasPrefix(name, "base_model.model.") || x.Shape[0] != 3 || b.Shape[1] != 3 || !strings.Contains(strings.Join(config.Targets, " "), module) {
			t.Errorf("%s %v beside %v, targets %v", x.Name, x.Shape, b.Shape, config.Targets)
		}
	}
}
