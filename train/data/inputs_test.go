package data

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

func tokensOf(t *testing.T, n int) string {
	t.Helper()
	var raw []byte
	for i := range n {
		raw = append(raw, byte(i%50+1), 0)
	}
	return file(t, "t.bin", raw)
}

// Exports of both exporters, of models that shift their labels and of one that
// does not.
func TestSamples(t *testing.T) {
	for name, want := range map[string]Mapping{
		"gpt2_tiny.dyn":             {Tokens: "input_ids", Labels: "labels", Kind: LabelsSame, Vocabulary: 512, Ignored: -100},
		"gpt2_tiny_mask.ts":         {Tokens: "input_ids", Labels: "labels", Kind: LabelsSame, Vocabulary: 512, Ignored: -100, Fill: map[string]string{"attention_mask": "ones"}},
		"gpt2_tiny_mask.ts_dynaxes": {Tokens: "input_ids", Labels: "labels", Kind: LabelsSame, Vocabulary: 512, Ignored: -100, Fill: map[string]string{"attention_mask": "ones"}},
		"llama_tiny.dyn":            {Tokens: "input_ids", Labels: "labels", Kind: LabelsSame, Vocabulary: 256, Ignored: -100},
		"nanogpt_tril.ts_op17":      {Tokens: "idx", Labels: "targets", Kind: LabelsNext, Vocabulary: 512, Ignored: -1},
		"lstm_char.ts":              {Tokens: "idx", Labels: "targets", Kind: LabelsNext, Vocabulary: 60, Ignored: -100},
		"bert_tiny.ts": {Tokens: "input_ids", Labels: "labels", Kind: LabelsNext, Vocabulary: 200, Ignored: -100,
			Fill: map[string]string{"attention_mask": "ones", "token_type_ids": "zeros"}},
	} {
		m, err := onnx.Load(filepath.Join("../../testdata/models", name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		d, err := open(t, m, Options{Tokens: tokensOf(t, 2000)}, Sizes{Dims: map[string]int64{"batch": 2, "seq": 16}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := d.Mapping
		if got.Tokens != want.Tokens || got.Labels != want.Labels || got.Kind != want.Kind || got.Vocabulary != want.Vocabulary ||
			!got.Ignores || got.Ignored != want.Ignored || !maps.Equal(got.Fill, want.Fill) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		b, err := d.Train.At(1)
		if err != nil {
			t.Fatal(name, err)
		}
		shift := int64(1)
		if got.Kind == LabelsSame {
			shift = 0
		}
		for i, label := range ints(b[got.Labels]) {
			if id := ints(b[got.Tokens])[i]; label != (id-1+shift)%50+1 {
				t.Fatalf("%s: label %d of token %d", name, label, id)
			}
		}
		if warned := strings.Contains(strings.Join(d.Notes, "\n"), "no causal mask"); warned != (name == "bert_tiny.ts") {
			t.Errorf("%s: a note about its mask: %v", name, warned)
		}
		counted := got.Batch * (got.Length - 1 + shift)
		if d.Train.Tokens(b) != counted {
			t.Errorf("%s: %d labels count, want %d", name, d.Train.Tokens(b), counted)
		}
	}
}

// A graph whose parameters are inputs beside the tokens.
func TestSampleWithParameters(t *testing.T) {
	m, err := onnx.Load("../../testdata/models/joint/gpt2_tiny_eager.EMA.onnx")
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	roles := runtime.Roles{Loss: "loss", Grad: map[string]string{}}
	for _, v := range m.Graph.Inputs {
		if v.Type.DType.IsFloat() {
			roles.Grad[v.Name] = "loss"
		}
	}
	d, err := open(t, m, Options{Tokens: tokensOf(t, 2000)}, Sizes{Roles: &roles})
	if err != nil || d.Mapping.Tokens != "input_ids" || d.Mapping.Kind != LabelsSame {
		t.Errorf("%+v %v", d, err)
	}
}

// graph is a language model of 64 tokens around other ways to compare.
func graph(inputs, body string) string {
	return `model ir=10 opset=18
graph g {
  in ids int64[2,6]
  in labels int64[2,6]
` + inputs + `  init table int64[2] = [64,3]
  init flat int64[1] = [-1]
  init rows int64[2] = [-1,64]
  init zero int64[1] = [0]
  init one int64[1] = [1]
  init five int64[1] = [5]
  init last int64[1] = [-1]
  init end int64[1] = [1000]
  wte = ConstantOfShape(table)
  t = Transpose(wte) {perm=[1,0]}
  h = Gather(wte, ids)
` + body + `  out loss float32[]
}
`
}

const plainLoss = `  z = MatMul(h, t)
  zr = Reshape(z, rows)
  y = Reshape(labels, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y)
`

func TestShift(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"same positions", plainLoss, LabelsNext},
		{"logits and labels cut", `  z = MatMul(h, t)
  zs = Slice(z, zero, last, one)
  ys = Slice(labels, one, end, one)
  zr = Reshape(zs, rows)
  y = Reshape(ys, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y)
`, LabelsSame},
		{"logits cut along an axis that counts from the end", `  init before int64[1] = [-2]
  z = MatMul(h, t)
  zs = Slice(z, zero, last, before)
  ys = Slice(labels, one, end, one)
  zr = Reshape(zs, rows)
  y = Reshape(ys, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y)
`, LabelsSame},
		{"logits cut along all axes", `  init from int64[3] = [0,0,0]
  init to int64[3] = [9223372036854775807,-1,9223372036854775807]
  init all int64[3] = [0,1,2]
  z = MatMul(h, t)
  zs = Slice(z, from, to, all)
  ys = Slice(labels, one, end, one)
  zr = Reshape(zs, rows)
  y = Reshape(ys, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y)
`, LabelsSame},
		{"hidden cut before the head", `  hs = Slice(h, zero, last, one)
  z = MatMul(hs, t)
  ys = Slice(labels, one, end, one)
  zr = Reshape(z, rows)
  y = Reshape(ys, flat)
  p = LogSoftmax(zr) {axis=1}
  loss = NegativeLogLikelihoodLoss(p, y)
`, LabelsSame},
		{"classes second", `  z = MatMul(h, t)
  zs = Slice(z, zero, last, one)
  zt = Transpose(zs) {perm=[0,2,1]}
  ys = Slice(labels, one, end, one)
  loss = SoftmaxCrossEntropyLoss(zt, ys)
`, LabelsSame},
		{"first position ignored, not shifted", `  init ignored int64[2,1] = [-100,-100]
  z = MatMul(h, t)
  zr = Reshape(z, rows)
  ys = Slice(labels, one, end, one)
  yc = Concat(ignored, ys) {axis=1}
  y = Reshape(yc, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y)
`, LabelsNext},
		{"in two slices", `  init half int64[1] = [6]
  init twelve int64[1] = [12]
  init pads int64[4] = [0,0,0,1]
  init ignored int64[] = -100
  h2 = Reshape(h, hrows)
  yp = Pad(labels, pads, ignored)
  ys = Slice(yp, one, end, one)
  yf = Reshape(ys, flat)
  h0 = Slice(h2, zero, half, zero)
  h1 = Slice(h2, half, twelve, zero)
  z0 = MatMul(h0, t)
  z1 = MatMul(h1, t)
  y0 = Slice(yf, zero, half, zero)
  y1 = Slice(yf, half, twelve, zero)
  a = SoftmaxCrossEntropyLoss(z0, y0) {reduction="sum"}
  b = SoftmaxCrossEntropyLoss(z1, y1) {reduction="sum"}
  loss = Add(a, b)
  init hrows int64[2] = [-1,3]
`, LabelsSame},
		{"two behind", `  z = MatMul(h, t)
  init two int64[1] = [2]
  init least int64[1] = [-2]
  zs = Slice(z, zero, least, one)
  ys = Slice(labels, two, end, one)
  zr = Reshape(zs, rows)
  y = Reshape(ys, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y)
`, "error: compares the label at position 2 with the prediction at position 0"},
		{"computed labels", `  z = MatMul(h, t)
  zr = Reshape(z, rows)
  yc = CumSum(labels, one)
  ym = Mod(yc, end)
  y = Reshape(ym, flat)
  loss = SoftmaxCrossEntropyLoss(zr, y)
`, "error: give --fill NAME"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Initializers come before nodes in a text graph.
			var inits, nodes []string
			for _, line := range strings.SplitAfter(c.body, "\n") {
				if strings.HasPrefix(line, "  init") {
					inits = append(inits, line)
				} else {
					nodes = append(nodes, line)
				}
			}
			m := parse(t, graph(strings.Join(inits, ""), strings.Join(nodes, "")))
			path := tokensOf(t, 200)
			d, err := open(t, m, Options{Tokens: path, Fill: map[string]string{}}, Sizes{})
			if text, ok := strings.CutPrefix(c.want, "error: "); ok {
				if err == nil || c.name != "computed labels" && !strings.Contains(err.Error(), text) {
					t.Errorf("%v, want %s", err, text)
				}
				return
			}
			if err != nil || d.Mapping.Kind != c.want {
				t.Fatalf("%v, want %s", err, c.want)
			}
			// A flag wins.
			other := map[string]string{LabelsSame: LabelsNext, LabelsNext: LabelsSame}[c.want]
			d, err = open(t, m, Options{Tokens: path, Labels: other}, Sizes{})
			if err != nil || d.Mapping.Kind != other || !strings.Contains(d.Notes[0], "--labels says so, though") {
				t.Errorf("--labels %s: %+v %v", other, d, err)
			}
		})
	}
}

func TestInputs(t *testing.T) {
	small := "  pos = ConstantOfShape(table)\n"
	for _, c := range []struct {
		name, inputs, body string
		fill               map[string]string
		want               string // the other inputs, or an error
	}{
		{"an angle", "  in where int64[1,6]\n", "  w = Cast(where) {to=1}\n  s = Sin(w)\n  wu = Unsqueeze(s, last)\n  h1 = Add(h, wu)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), nil, "where=positions"},
		{"a table by name", "  in position_ids int64[2,6]\n", small + "  p = Gather(pos, position_ids)\n  h1 = Add(h, p)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), nil, "position_ids=positions"},
		{"a condition", "  in keep bool[2,6]\n", "  k = Unsqueeze(keep, last)\n  h1 = Where(k, h, h)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), nil, "keep=ones"},
		{"an unread one", "  in nothing int64[2]\n", plainLoss, nil, "nothing=zeros"},
		{"one whose size delays a node", "  in nothing int64[2]\n", "  n = Size(nothing)\n" + plainLoss, nil, "nothing=zeros"},
		{"unknown", "  in scale int64[2,6]\n", "  w = Cast(scale) {to=1}\n  wu = Unsqueeze(w, last)\n  h1 = Mul(h, wu)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), nil, `error: input "scale": int64[2,6], neither tokens nor labels`},
		{"stated", "  in scale int64[2,6]\n", "  w = Cast(scale) {to=1}\n  wu = Unsqueeze(w, last)\n  h1 = Mul(h, wu)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), map[string]string{"scale": "ones"}, "scale=ones"},
		{"floats", "  in scale float32[2,6,1]\n", "  h1 = Mul(h, scale)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), nil, `error: input "scale": float32[2,6,1], neither`},
		{"two of the same table", "  in more int64[2,6]\n", "  p = Gather(wte, more)\n  h1 = Add(h, p)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), nil, `error: input "more"`},
		{"labels embedded", "", "  p = Gather(wte, labels)\n  h1 = Add(h, p)\n" + strings.Replace(plainLoss, "MatMul(h,", "MatMul(h1,", 1), nil, `error: input "labels": holds labels, and the model embeds them too`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := parse(t, graph(c.inputs, c.body))
			d, err := open(t, m, Options{Tokens: tokensOf(t, 0x100), Fill: c.fill}, Sizes{})
			if text, ok := strings.CutPrefix(c.want, "error: "); ok {
				oneLine(t, err, text)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			name, word, _ := strings.Cut(c.want, "=")
			if d.Mapping.Tokens != "ids" || d.Mapping.Labels != "labels" || d.Mapping.Fill[name] != word {
				t.Errorf("%+v", d.Mapping)
			}
		})
	}
}

func BenchmarkBatch(b *testing.B) {
	// GPT-2 124M's batch of 8 × 1024, shuffled.
	t := &testing.T{}
	raw := make([]byte, 2<<20)
	for i := range raw {
		raw[i] = byte(i % 2 * 100)
	}
	m := parse(t, strings.ReplaceAll(lm, "[batch,seq]", "[8,1024]"))
	path := filepath.Join(b.TempDir(), "t.bin")
	if err := os.WriteFile(path, raw, 0o644); err != nil {
		b.Fatal(err)
	}
	d, err := open(t, m, Options{Tokens: path, Shuffle: true}, Sizes{})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for n := range b.N {
		if _, err := d.Train.At(int64(n)); err != nil {
			b.Fatal(err)
		}
	}
}

// TestTakesText: a model takes text that embeds tokens and compares as many labels, and whose
// other inputs the graph explains; not one that has a label for each sample.
func TestTakesText(t *testing.T) {
	for name, want := range map[string]bool{"gpt2_tiny.dyn": true, "gpt2_tiny_mask.ts_dynaxes": true, "nanogpt_tril.ts_op17": true, "lstm_char.ts": true, "bert_tiny.ts": true, "resnet18_like.ts": false} {
		m, err := onnx.Load(filepath.Join("../../testdata/models", name+".onnx"))
		if err != nil {
			t.Fatal(err)
		}
		if got := TakesText(m, Sizes{}); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
		m.Close()
	}
	pooled := "  init mid int64[1] = [1]\n  e = ReduceMean(h, mid) {keepdims=0}\n  z = MatMul(e, t)\n  loss = SoftmaxCrossEntropyLoss(z, class)\n"
	for name, c := range map[string]struct {
		text string
		want bool
	}{
		"a label for each token":  {graph("", plainLoss), true},
		"a label for each sample": {strings.Replace(graph("  in class int64[2]\n", pooled), "  in labels int64[2,6]\n", "", 1), false},
		"numbers beside":          {graph("  in extra float32[2,6]\n", strings.Replace(plainLoss, "  loss =", "  s = ReduceMean(extra) {keepdims=0}\n  k =", 1)+"  loss = Add(k, s)\n"), false},
	} {
		m := parse(t, c.text)
		if got := TakesText(m, Sizes{}); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
		// A label for each sample is refused before anybody asks how labels are shifted.
		if _, err := open(t, m, Options{Tokens: tokensOf(t, 2000)}, Sizes{}); strings.Contains(c.text, "class") &&
			(err == nil || !strings.Contains(err.Error(), `input "class": shape [2] for labels of 2 samples of 6 tokens: text has a label for each token`)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
