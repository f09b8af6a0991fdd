package models

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
)

// small makes every row quick to write.
func small(c Config) Config {
	c.Layers = min(c.Layers, 2)
	c.Hidden = min(c.Hidden, 64)
	if c.Heads > 0 {
		c.Heads = 4
	}
	c.Vocab, c.Positions = min(c.Vocab, 96), min(c.Positions, 16)
	c.Seq, c.Batch = min(c.Seq, 16), min(c.Batch, 2)
	return c
}

func TestEveryRowBuilds(t *testing.T) {
	for _, r := range Rows {
		if r.Doc == "" {
			t.Errorf("%s has no doc", r.Name)
		}
		for _, change := range []func(*Config){
			func(*Config) {},
			func(c *Config) { c.Batch = 0 },
			func(c *Config) { c.Batch, c.Seq = 0, 0 },
			func(c *Config) { c.Dropout, c.Logits = 0.1, true },
			func(c *Config) { c.Seq, c.Logits = 0, true },
		} {
			c := small(r.Default)
			change(&c)
			m, err := r.Build(c)
			if err != nil {
				t.Errorf("%s %+v: %v", r.Name, c, err)
				continue
			}
			checkTypes(t, m)
		}
	}
}

// checkTypes asks that every value has a type with as many extents known as
// the inputs allow, and that the loss is a scalar.
func checkTypes(t *testing.T, m *Built) {
	t.Helper()
	g := m.Model.Graph
	if s := g.Outputs[0]; s.Name != "loss" || len(s.Type.Shape) != 0 {
		t.Errorf("%s: first output %s %s", m.Row.Name, s.Name, s.Type)
	}
	for _, n := range g.Nodes {
		for _, v := range n.Outputs {
			known := v.Type.Known() && v.Type.Ranked
			for _, d := range v.Type.Shape {
				known = known && d.Known()
			}
			if !known {
				t.Errorf("%s: %s has type %s", m.Row.Name, v.Name, v.Type)
			}
		}
	}
}

func TestParameterCounts(t *testing.T) {
	// As Hugging Face's num_parameters() counts the four sizes.
	for name, want := range map[string]int64{
		"gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200,
		"heavy": 20 * (4096*4096 + 4096), "mlp": 20*(1024*1024+1024) + 10*1024 + 10, "encoder": 6 * 7087872,
	} {
		r, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := r.Build(r.Default)
		if err != nil {
			t.Fatal(err)
		}
		got := int64(0)
		for _, p := range m.Params {
			got += p.Elements()
		}
		if got != want {
			t.Errorf("%s has %d parameters, not %d", name, got, want)
		}
	}
}

func TestRefuses(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"--layers 0":     func(c *Config) { c.Layers = 0 },
		"not a multiple": func(c *Config) { c.Heads = 5 },
		"--dropout 1:":   func(c *Config) { c.Dropout = 1 },
		"--vocab -1":     func(c *Config) { c.Vocab = -1 },
		"--batch -2":     func(c *Config) { c.Batch = -2 },
	} {
		r, _ := Find("gpt2-tiny")
		c := r.Default
		change(&c)
		if _, err := r.Build(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	if _, err := Find("gpt3"); err == nil || !strings.Contains(err.Error(), "gpt2-xl") {
		t.Errorf("unknown model: %v", err)
	}
}

func buildSmall(t *testing.T, name string) *Built {
	t.Helper()
	r, err := Find(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := r.Build(small(r.Default))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestSaveGenerates(t *testing.T) {
	dir := t.TempDir()
	m := buildSmall(t, "gpt2-tiny")
	if err := m.Save(filepath.Join(dir, "m.onnx")); err != nil {
		t.Fatal(err)
	}
	back, err := onnx.Load(filepath.Join(dir, "m.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	if err := back.Check(); err != nil {
		t.Fatal(err)
	}
	inline := buildSmall(t, "gpt2-tiny")
	inline.Inline()
	for _, p := range m.Params {
		v := back.Graph.Value(p.Name)
		if v == nil || v.Init == nil || v.IsInput() {
			t.Fatalf("%s is no initializer", p.Name)
		}
		got, err := v.Init.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		want, _ := inline.Model.Graph.Value(p.Name).Init.Bytes()
		if !bytes.Equal(got, want) {
			t.Errorf("%s: the file holds other values than the model itself", p.Name)
		}
	}
	if len(back.Graph.Inputs) != 2 {
		t.Errorf("inputs %v", back.Graph.Inputs)
	}
}

func TestSaveWithWeights(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "given.safetensors")
	if err := buildSmall(t, "gpt2-tiny").Save(filepath.Join(dir, "given.onnx")); err != nil {
		t.Fatal(err)
	}
	if err := buildSmall(t, "gpt2-tiny").SaveWith(filepath.Join(dir, "refers.onnx"), source); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "refers.safetensors")); err == nil {
		t.Error("weights beside the model were copied")
	}
	other := t.TempDir()
	if err := buildSmall(t, "gpt2-tiny").SaveWith(filepath.Join(other, "copy.onnx"), source); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(source)
	b, err := os.ReadFile(filepath.Join(other, "copy.safetensors"))
	if err != nil || !bytes.Equal(a, b) {
		t.Errorf("the copy differs: %v", err)
	}
	err = buildSmall(t, "encoder").SaveWith(filepath.Join(other, "e.onnx"), source)
	if err == nil || !strings.Contains(err.Error(), "encoder.layer.0") {
		t.Errorf("weights of another model: %v", err)
	}
}

// TestHalfWeights reads bfloat16 weights under the names of the bare model.
func TestHalfWeights(t *testing.T) {
	dir := t.TempDir()
	m := buildSmall(t, "gpt2-tiny")
	var infos []safetensors.Info
	for _, p := range m.Params {
		infos = append(infos, safetensors.Info{Name: strings.TrimPrefix(p.Name, "transformer."), DType: onnx.BFloat16, Shape: p.Shape})
	}
	layout, err := safetensors.Plan(infos, nil)
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(dir, "half.safetensors")
	err = layout.Create(half, func(f *os.File) error {
		_, err := f.WriteAt([]byte{0xc0, 0x3f}, layout.Tensors[0].Offset) // 1.5
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SaveWith(filepath.Join(dir, "m.onnx"), half); err != nil {
		t.Fatal(err)
	}
	back, err := onnx.Load(filepath.Join(dir, "m.onnx"))
	if err != nil {
		t.Fatal(err)
	}
	defer back.Close()
	v, err := back.Graph.Value(m.Params[0].Name).Init.Float64s()
	if err != nil || v[0] != 1.5 || v[1] != 0 {
		t.Errorf("widened to %v, %v", v[:2], err)
	}
}

func TestDescribe(t *testing.T) {
	m := buildSmall(t, "gpt2-tiny")
	if err := m.Describe(); err != nil {
		t.Fatal(err)
	}
	places, _ := m.Model.Metadata("remat.parameters")
	if !strings.Contains(places, `"transformer.ln_f.weight":{"file":"","offset":0,"bytes":256,"init":"constant","scale":1}`) {
		t.Error(places)
	}
	if v := m.Model.Graph.Value("transformer.wte.weight"); !v.IsInput() || v.Init != nil {
		t.Error("a described parameter is no input")
	}
}
