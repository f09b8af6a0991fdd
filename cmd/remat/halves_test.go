package main

import (
	"encoding/json"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
)

// proportions are roughly those of GPT-2 at 2 x 128 and at 8 x 512 tokens: in the one
// the gradients outweigh the logits, in the other the logits outweigh them. The third
// is small enough to be searched. In the fourth a search updates the embedding by rows,
// so that one next state in float32 is nearly all that a step holds in any type.
var proportions = []struct{ model, strategies []string }{
	{[]string{"--vocab", "50257", "--batch", "1", "--seq", "16"}, []string{"none", "full"}},
	{[]string{"--vocab", "50257", "--layers", "6", "--hidden", "256", "--batch", "4", "--seq", "128"}, []string{"none", "full"}},
	{[]string{"--layers", "1", "--batch", "4", "--seq", "32"}, []string{"none", "full", "optimal"}},
	{[]string{"--vocab", "4096", "--layers", "1", "--batch", "1", "--seq", "16"}, []string{"least"}},
}

// TestHalfOfSix: the half types among the six standard variants are those that rewrite
// writes by its defaults. Here all gradients together would take more than the step.
func TestHalfOfSix(t *testing.T) {
	c := rehearsing(t)
	c.must(t, "model", "gpt2-tiny", "--layers", "6", "--hidden", "256", "--batch", "2", "--seq", "8", "-o", "model.onnx")
	out, err := c.remat("--json", "compare", "model.onnx", "--six", "--steps", "2")
	if err != nil {
		t.Fatal(err)
	}
	var d report.Compare
	if err := json.Unmarshal(out, &d); err != nil {
		t.Fatal(err)
	}
	c.must(t, "rewrite", "model.baseline.onnx", "--strategy", "none", "--precision", "fp16", "-o", "half.onnx")
	want, err := c.measured("half.onnx", "1")
	if err != nil {
		t.Fatal(err)
	}
	if half := d.Models[1]; half.Label != "half precision" || *half.Memory.LivePeakBytes != *want.LivePeakBytes {
		t.Errorf("%s holds %d bytes, rewrite's %d", half.Label, *half.Memory.LivePeakBytes, *want.LivePeakBytes)
	}
}

// TestHalfHoldsLess: with AdamW in the graph a step in half types holds less on CUDA
// than one in float32, reordered or rewritten; and a search with --precision never
// more than one without. Rehearsed: what was predicted is what the provider took.
func TestHalfHoldsLess(t *testing.T) {
	c := rehearsing(t)
	for _, p := range proportions {
		c.must(t, append([]string{"model", "gpt2-tiny", "-o", "model.onnx"}, p.model...)...)
		c.must(t, "grad", "model.onnx", "--optimizer", "adamw", "-o", "train.onnx")
		for _, strategy := range p.strategies {
			held := map[string]int64{}
			for _, precision := range []string{"fp32", "fp16", "bf16"} {
				c.must(t, "rewrite", "train.onnx", "--strategy", strategy, "--precision", precision, "-o", "step.onnx")
				m, err := c.measured("step.onnx", "1")
				if err != nil {
					t.Fatalf("%v, %s, %s: %v", p.model, strategy, precision, err)
				}
				held[precision] = *m.LivePeakBytes
			}
			t.Logf("%v, %s: %v", p.model, strategy, held)
			less := func(half string) bool {
				return held[half] < held["fp32"] || strategy == "optimal" && held[half] == held["fp32"]
			}
			if !less("fp16") || !less("bf16") {
				t.Errorf("%v, %s: live peaks of %v bytes, want less in half types", p.model, strategy, held)
			}
		}
	}
}
