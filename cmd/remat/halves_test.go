package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// proportions are roughly those of GPT-2 at 2 x 128 and at 8 x 512 tokens: in the one
// the gradients outweigh the logits, in the other the logits outweigh them. The third
// is small enough to be searched.
var proportions = []struct{ model, strategies []string }{
	{[]string{"--vocab", "50257", "--batch", "1", "--seq", "16"}, []string{"none", "full"}},
	{[]string{"--vocab", "50257", "--layers", "6", "--hidden", "256", "--batch", "4", "--seq", "128"}, []string{"none", "full"}},
	{[]string{"--layers", "1", "--batch", "4", "--seq", "32"}, []string{"none", "full", "optimal"}},
}

// TestHalfHoldsLess: with AdamW in the graph a step in half types holds less on CUDA
// than one in float32, reordered or rewritten; and a search with --precision never
// more than one without. Rehearsed: what was predicted is what the provider took.
func TestHalfHoldsLess(t *testing.T) {
	build := rehearsalBuild(t)
	if build == "" {
		t.Skip("no GPU build of ONNX Runtime: remat doctor --install cuda")
	}
	program := filepath.Join(t.TempDir(), "remat")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	c := &cells{program: program, dir: t.TempDir(), env: append(os.Environ(), "REMAT_ORT="+build)}
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
