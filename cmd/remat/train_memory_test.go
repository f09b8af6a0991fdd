package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// remats runs a command and returns its exit code, what it printed, and its last line
// on stderr.
func remats(t *testing.T, args ...string) (code int, out, last string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(context.Background(), append([]string{"--quiet"}, args...), &stdout, &stderr)
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	return code, stdout.String(), lines[len(lines)-1]
}

// TestTrainWithin: a training within a memory, half of the way between what the plain
// step and the least takes, takes what was predicted, to the byte, and no more than that
// memory, also as a hard limit, under which the plain training ends with a line.
func TestTrainWithin(t *testing.T) {
	at := newFolder(t).at
	tokens := make([]byte, 2*4096)
	for i := range 4096 {
		tokens[2*i] = byte(i * i % 61)
	}
	if err := os.WriteFile(at("tokens.bin"), tokens, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, last := remats(t, "model", "gpt2-tiny", "--batch", "0", "--seq", "0", "-o", at("zoo.onnx")); code != exitDone {
		t.Fatal(last)
	}
	llama, err := filepath.Abs("../../testdata/models/llama_tiny.dyn.onnx")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		model, optimizer string
		memory           int64
		flags            []string
	}{
		"zoo":   {at("zoo.onnx"), "adamw", 4_200_000, []string{"--dim", "batch=4,seq=64"}},
		"split": {at("zoo.onnx"), "sgd", 4 << 20, []string{"--dim", "batch=16,seq=64"}},
		"llama": {llama, "sgd", 1_150_000, nil},
	} {
		t.Run(name, func(t *testing.T) {
			limit := fmt.Sprint(c.memory)
			args := append([]string{"--json", "train", c.model, "--tokens", at("tokens.bin"), "--steps", "2", "--optimizer", c.optimizer, "--memory-limit", limit}, c.flags...)
			code, _, last := remats(t, append(args, "-o", at(name+"_plain"))...)
			if code != exitCheckFailed || !strings.Contains(last, "out of memory") || !strings.Contains(last, "--memory "+limit) {
				t.Fatalf("plain: exit code %d, %q", code, last)
			}
			code, out, last := remats(t, append(args, "-o", at(name), "--memory", limit)...)
			if code != exitDone {
				t.Fatalf("exit code %d, %q", code, last)
			}
			var doc struct {
				Memory struct {
					Parameters int64 `json:"parameter_bytes"`
					State      int64 `json:"state_bytes"`
					Feeds      int64 `json:"feed_bytes"`
					Session    int64 `json:"predicted_session_bytes"`
					Live       int64 `json:"live_peak_bytes"`
					Predicted  int64 `json:"predicted_live_peak_bytes"`
				} `json:"memory"`
			}
			if err := json.Unmarshal([]byte(out), &doc); err != nil {
				t.Fatal(err)
			}
			m := doc.Memory
			if total := m.Parameters + m.State + m.Feeds + m.Session + m.Live; m.Live != m.Predicted || m.Live == 0 || total > c.memory {
				t.Errorf("takes %d of %d: %+v", total, c.memory, m)
			}
		})
	}
	code, _, last := remats(t, "train", at("zoo.onnx"), "--tokens", at("tokens.bin"), "--steps", "1", "--dim", "batch=2,seq=32", "--memory", "100kB", "-o", at("none"))
	if code != exitCheckFailed || !strings.Contains(last, "nothing fits") || !strings.Contains(last, "raise --memory to") {
		t.Errorf("a memory under the least: exit code %d, %q", code, last)
	}
	if _, err := os.Stat(at("none/train.onnx")); err == nil {
		t.Error("a file was written that does not fit")
	}
}
