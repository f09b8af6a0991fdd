package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
)

// adviceCases are models at small sizes, with shares of what the plain step takes. The
// further ones are tried under REMAT_SWEEP=1: a quarter of an hour more.
var adviceCases = []struct {
	name            string
	args            []string
	shares, further []float64
}{
	{"gpt2-tiny", []string{"--batch", "2", "--seq", "32"}, []float64{1.2, 0.6, 0.1}, []float64{0.9, 0.3}},
	{"mlp", []string{"--layers", "4", "--hidden", "64", "--batch", "64"}, []float64{0.4}, []float64{0.7, 0.05}},
	{"heavy", []string{"--layers", "4", "--hidden", "64", "--batch", "32", "--optimizer", "lion"}, []float64{0.3}, []float64{0.8}},
	{"encoder", []string{"--layers", "2", "--hidden", "32", "--heads", "2", "--seq", "16", "--batch", "2"}, nil, []float64{0.8, 0.4}},
	{"llama_tiny.dyn.onnx", nil, []float64{0.5}, []float64{0.8}},
	{"gpt2_tiny.dyn.onnx", []string{"--optimizer", "sgd"}, nil, []float64{0.7}},
	{"gpt2_tiny_mask.ts.onnx", []string{"--optimizer", "lion"}, nil, []float64{0.8, 0.5}},
	{"gpt2_tiny_mask.ts_dynaxes.onnx", []string{"--batch", "4", "--seq", "24"}, nil, []float64{0.7, 0.4}},
	{"nanogpt_tril.ts_op17.onnx", nil, nil, []float64{0.8, 0.5}},
	{"bert_tiny.ts.onnx", nil, []float64{0.2}, []float64{0.7}},
	{"encoder_postln.dyn.onnx", nil, nil, []float64{0.8, 0.5}},
	{"encoder_postln.ts.onnx", nil, nil, []float64{0.7}},
	{"seq20_relu.dyn.onnx", nil, nil, []float64{0.8, 0.6}},
	{"mlp20.ts.onnx", nil, nil, []float64{0.8, 0.4}},
	{"lstm_char.ts.onnx", nil, nil, []float64{0.8}},
	{"resnet18_like.ts.onnx", []string{"--optimizer", "sgd"}, []float64{0.8}, []float64{0.5}},
	{"joint/gpt2_tiny_eager.step_adamw.onnx", nil, []float64{0.7}, []float64{0.9}},
	{"stops/simsiam.ts.onnx", nil, nil, []float64{0.8, 0.4}},
	{"stops/vq.ts.onnx", nil, nil, []float64{0.8, 0.4}},
	{"stops/dqn.ts.onnx", nil, nil, []float64{0.8, 0.4}},
}

// advised runs the command and returns its document.
func advised(t *testing.T, args ...string) (int, *report.Advice) {
	t.Helper()
	code, out, last := remats(t, append([]string{"--json", "advise"}, args...)...)
	if code != exitDone && code != exitCheckFailed {
		t.Fatalf("%v: exit code %d, %s", args, code, last)
	}
	d := &report.Advice{}
	if err := json.Unmarshal([]byte(out), d); err != nil {
		t.Fatal(err)
	}
	if (code == exitDone) != (d.Recommended != nil) {
		t.Errorf("%v: exit code %d, recommended %v", args, code, d.Recommended)
	}
	return code, d
}

// TestAdvise: every command line that is said to fit is executed, and what the step
// takes, measured, is within the memory; advising writes nothing.
func TestAdvise(t *testing.T) {
	if testing.Short() {
		t.Skip("plans and runs many graphs")
	}
	samples, err := filepath.Abs("../../testdata/models")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range adviceCases {
		shares := c.shares
		if os.Getenv("REMAT_SWEEP") != "" {
			shares = slices.Concat(shares, c.further)
		}
		for _, share := range shares {
			t.Run(fmt.Sprint(c.name, " ", share), func(t *testing.T) {
				dir := t.TempDir()
				t.Chdir(dir)
				name := filepath.Base(c.name)
				args := append([]string{name}, c.args...)
				if strings.HasSuffix(name, ".onnx") {
					data, err := os.ReadFile(filepath.Join(samples, c.name))
					if err == nil {
						err = os.WriteFile(name, data, 0o644)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				_, plain := advised(t, append(args, "--memory", "1TiB")...)
				memory := int64(share * float64(plain.Recommended.Total))
				before := entriesOf(t, dir)
				_, d := advised(t, append(args, "--memory", fmt.Sprint(memory))...)
				if after := entriesOf(t, dir); after != before {
					t.Fatalf("advising wrote: %s, before %s", after, before)
				}
				checkNeed(t, d)
				if share > 1 && d.Recommended.Overhead != 0 {
					t.Errorf("it fits as it is: %+v", d.Recommended)
				}
				if d.Recommended != nil {
					execute(t, d, d.Recommended.Commands, d.Recommended.Total)
				} else if d.Nearest == nil || d.Nearest.Total <= memory {
					t.Errorf("nothing fits %d, and the nearest is %+v", memory, d.Nearest)
				}
				for _, m := range d.Measures {
					if m.Fits && (d.Recommended == nil || strings.Join(m.Commands, "\n") != strings.Join(d.Recommended.Commands, "\n")) {
						execute(t, d, m.Commands, *m.Total)
					}
				}
			})
		}
	}
}

func entriesOf(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(entries)
}

// checkNeed: the items add up, and every measure has what the contract says.
func checkNeed(t *testing.T, d *report.Advice) {
	t.Helper()
	n := d.Need
	if sum := n.ParameterBytes + n.GradientBytes + n.StateBytes + n.ActivationBytes + n.OtherBytes; sum != n.TotalBytes || n.OtherBytes < 0 {
		t.Errorf("the items add up to %d, not %d: %+v", sum, n.TotalBytes, n)
	}
	if d.Short != max(0, n.TotalBytes-d.Memory) || n.Trained.Elements == 0 {
		t.Errorf("short %d of %d, memory %d; %+v", d.Short, n.TotalBytes, d.Memory, n.Trained)
	}
	for _, m := range d.Measures {
		if m.Total != nil && m.Fits != (*m.Total <= d.Memory) || m.Total == nil && (m.Fits || m.Remark == "") {
			t.Errorf("%+v", m)
		}
	}
}

// scalarFeeds are the learning rate and the step's number, in bytes: no batch holds them.
const scalarFeeds = 4 + 8

// execute runs command lines, and holds what the last one measures to the memory and, to
// the byte, to what was predicted.
func execute(t *testing.T, d *report.Advice, commands []string, predicted int64) {
	t.Helper()
	var out string
	for _, c := range commands {
		words := shellWords(c)
		code, text, last := remats(t, append([]string{"--json"}, words[1:]...)...)
		if code != exitDone {
			t.Fatalf("%s: exit code %d, %s", c, code, last)
		}
		out = text
	}
	var doc struct {
		Memory struct {
			Parameters int64 `json:"parameter_bytes"`
			State      int64 `json:"state_bytes"`
			Feeds      int64 `json:"feed_bytes"`
			Total      int64 `json:"total_peak_bytes"`
			Reserved   int64 `json:"reserved_bytes"`
			Live       int64 `json:"live_peak_bytes"`
			Slab       int64 `json:"slab_bytes"`
		} `json:"memory"`
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	m := doc.Memory
	reserved := m.Parameters + m.State + m.Feeds + m.Reserved
	t.Logf("memory %d: predicted %d, measured %d, reserved in all %d", d.Memory, predicted, m.Total, reserved)
	if m.Total > d.Memory || reserved > d.Memory || m.Reserved == 0 {
		t.Errorf("%s\ntakes %d, reserved %d, of %d", strings.Join(commands, "\n"), m.Total, reserved, d.Memory)
	}
	ahead := batchesAhead * (m.Feeds - scalarFeeds)
	if all := m.Total - m.Live + m.Slab + ahead; predicted != all {
		t.Errorf("%s\ntakes %d with its slab and %d of batches ahead, predicted %d", strings.Join(commands, "\n"), all, ahead, predicted)
	}
}

// shellWords splits a line at spaces outside of single quotes.
func shellWords(line string) []string {
	var words []string
	quoted, word := false, ""
	for _, r := range line {
		switch {
		case r == '\'':
			quoted = !quoted
		case r == ' ' && !quoted:
			words, word = append(words, word), ""
		default:
			word += string(r)
		}
	}
	return append(words, word)
}

// TestAdviseData: the command that trains takes text where the model reads tokens, else arrays.
func TestAdviseData(t *testing.T) {
	for name, want := range map[string]string{"bert_tiny.ts": "--text FILE", "resnet18_like.ts": "--data FILE.npz"} {
		code, d := advised(t, filepath.Join("..", "..", "testdata", "models", name+".onnx"), "--params", "*", "--memory", "1GiB")
		if code != exitDone || d.Recommended == nil || !strings.Contains(string(d.Recommended.Train), want) {
			t.Errorf("%s: %d, %+v", name, code, d.Recommended)
		}
	}
}

// TestAdviseRecipe: what --write writes is what remat train takes.
func TestAdviseRecipe(t *testing.T) {
	t.Chdir(t.TempDir())
	tokens := make([]byte, 2*2048)
	for i := range 2048 {
		tokens[2*i] = byte(i * i % 61)
	}
	if err := os.WriteFile("tokens.bin", tokens, 0o644); err != nil {
		t.Fatal(err)
	}
	code, out, last := remats(t, "--json", "advise", "gpt2-tiny", "--batch", "2", "--seq", "32", "--memory", "2500kB", "--write", "recipe.yaml")
	if code != exitDone {
		t.Fatal(last)
	}
	d := &report.Advice{}
	if err := json.Unmarshal([]byte(out), d); err != nil {
		t.Fatal(err)
	}
	if code, _, last := remats(t, shellWords(d.Recommended.Commands[0])[1:]...); code != exitDone {
		t.Fatal(last)
	}
	code, out, last = remats(t, "--json", "train", "--config", "recipe.yaml", "--tokens", "tokens.bin", "--steps", "1", "-o", "run")
	if code != exitDone {
		t.Fatal(last)
	}
	var trained struct {
		Memory struct {
			Total int64 `json:"total_peak_bytes"`
		} `json:"memory"`
	}
	if err := json.Unmarshal([]byte(out), &trained); err != nil {
		t.Fatal(err)
	}
	if total := trained.Memory.Total; total == 0 || total > 2_500_000 {
		t.Errorf("the recipe's training takes %d", total)
	}
	if code, _, _ := remats(t, "advise", "gpt2-tiny", "--batch", "2", "--seq", "32", "--memory", "100kB", "--write", "none.yaml"); code != exitCheckFailed {
		t.Errorf("nothing fits: exit code %d", code)
	}
	if _, err := os.Stat("none.yaml"); err == nil {
		t.Error("a recipe was written of what does not fit")
	}
}

// TestAdviseNormalized: what CUDA has no kernel for as it is derived, and what rewrite replaces, is predicted.
func TestAdviseNormalized(t *testing.T) {
	t.Chdir(t.TempDir())
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\nin x float32[4,3,2,2]\nin y int64[4]\ninit w float32[2,3,1,1] = [1,-1,0.5,2,0.25,1]\n" +
		"init scale float32[2] = [1,2]\ninit bias float32[2] = [0,1]\ninit mean float32[2] = [0,0]\ninit var float32[2] = [1,1]\nh = Conv(x, w)\n" +
		"n, running_mean, running_var = BatchNormalization(h, scale, bias, mean, var) {training_mode=1}\nr = Relu(n)\np = GlobalAveragePool(r)\n" +
		"f = Flatten(p)\nloss = SoftmaxCrossEntropyLoss(f, y)\nout loss float32[]\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Save("norm.onnx"); err != nil {
		t.Fatal(err)
	}
	if _, d := advised(t, "--provider", "cuda", "--memory", "1GiB", "norm.onnx"); d.Need.TotalBytes == 0 || d.Recommended == nil {
		t.Errorf("%+v", d)
	}
}

// TestAdviseCUDA: for a GPU there are predictions without one, for the device's memory.
func TestAdviseCUDA(t *testing.T) {
	t.Chdir(t.TempDir())
	_, d := advised(t, "--provider", "cuda", "--device-memory", "3MB", "gpt2-tiny", "--batch", "2", "--seq", "32")
	if d.Memory != 3_000_000 || d.Provider != "cuda" || !d.Predicted {
		t.Errorf("%+v", d)
	}
	var plan struct {
		Total report.Total `json:"total"`
	}
	for _, c := range d.Recommended.Commands {
		code, out, last := remats(t, append([]string{"--json"}, shellWords(c)[1:]...)...)
		if code != exitDone {
			t.Fatalf("%s: %s", c, last)
		}
		if strings.Contains(c, " rewrite ") {
			if err := json.Unmarshal([]byte(out), &plan); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := plan.Total.TotalBytes; got == 0 || got > d.Recommended.Total || got > d.Memory {
		t.Errorf("the file takes %d, %d was said", got, d.Recommended.Total)
	}
}

// TestAdviseWrong: what cannot be meant is exit code 2 and one line.
func TestAdviseWrong(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct{ line, want string }{
		{"advise", "want one model"},
		{"advise gpt2-tiny", "give --memory SIZE"},
		{"advise gpt2-tiny --memory 50%", "want a size"},
		{"advise gpt2-tiny --memory 0", "want a size above 0"},
		{"advise gpt2-tiny --memory lots", "--memory"},
		{"advise gpt3 --memory 1GiB", "gpt3"},
		{"advise none.onnx --memory 1GiB", "none.onnx"},
		{"advise gpt2-tiny --memory 1GiB --batch 0", "--batch 0"},
		{"advise gpt2-tiny --memory 1GiB --batch -1", "--batch -1"},
		{"advise mlp --memory 1GiB --seq 8", "no --seq"},
		{"advise gpt2-tiny --memory 1GiB --dim batch=2", "--batch and --seq"},
		{"advise gpt2-tiny --memory 1GiB --optimizer none", "has an update"},
		{"advise gpt2-tiny --memory 1GiB --optimizer adamx", "--optimizer"},
		{"advise gpt2-tiny --memory 1GiB --accumulate 0", "--accumulate 0"},
		{"advise gpt2-tiny --memory 1GiB --write no/such/folder/r.yaml", "no/such/folder"},
		{"advise gpt2-tiny --device-memory 1GiB --provider cpu", "--rehearse"},
		{"advise gpt2-tiny --memory 1GiB --stash-only", "--precision"},
	} {
		code, _, last := remats(t, strings.Fields(c.line)...)
		if code != exitBadInput || !strings.Contains(last, c.want) {
			t.Errorf("%s: exit code %d, %q", c.line, code, last)
		}
	}
}
