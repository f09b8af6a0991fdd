package infer

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

// testdata/cases.txt holds one node per line:
//
//	Op@opset attr=1 attr=[1,2] attr=0.5 attr="text"  inputs -> outputs
//
// An input is a type (float32[2,n]), a constant with its elements
// (int64{1,2} of rank 1, int64(3) a scalar), or _ for one left out. An output
// is a type, with its elements in braces where they are known, or _. After
// "-> error:" stands a part of the message. Opset 20 is meant where none is
// given.

type nodeCase struct {
	line     string
	model    *onnx.Model
	node     *onnx.Node
	want     []string
	wantFail string
}

func readCases(t testing.TB) []nodeCase {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "cases.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []nodeCase
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		c, err := parseCase(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		out = append(out, c)
	}
	return out
}

func parseCase(line string) (nodeCase, error) {
	c := nodeCase{line: line}
	left, right, ok := strings.Cut(line, "->")
	if !ok || strings.HasSuffix(left, `="`) {
		return c, errors.New("no ->")
	}
	if strings.Count(line, "->") == 2 { // an Einsum equation holds one
		i := strings.LastIndex(line, "->")
		left, right = line[:i], line[i+2:]
	}
	right = strings.TrimSpace(right)
	if msg, ok := strings.CutPrefix(right, "error:"); ok {
		c.wantFail = strings.TrimSpace(msg)
	} else {
		c.want = strings.Fields(right)
	}
	words := strings.Fields(left)
	name, version, given := strings.Cut(words[0], "@")
	opset := int64(20)
	if given {
		var err error
		if opset, err = strconv.ParseInt(version, 10, 64); err != nil {
			return c, err
		}
	}
	domain, op := "", name
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		domain, op = name[:i], name[i+1:]
	}
	c.model = onnx.NewModel("case", opset)
	if domain != "" {
		c.model.SetOpset(domain, 1)
	}
	var attrs []onnx.Attribute
	var inputs []*onnx.Value
	for _, w := range words[1:] {
		if name, value, ok := strings.Cut(w, "="); ok && !strings.ContainsAny(name, "[{(") {
			a, err := parseAttr(name, value)
			if err != nil {
				return c, err
			}
			attrs = append(attrs, a)
			continue
		}
		v, err := addOperand(c.model.Graph, w)
		if err != nil {
			return c, err
		}
		inputs = append(inputs, v)
	}
	outputs := make([]string, max(1, len(c.want)))
	for i := range outputs {
		outputs[i] = fmt.Sprintf("out%d", i)
	}
	c.node = c.model.Graph.NewNode(domain, op, "node", inputs, outputs, attrs...)
	c.model.Graph.Append(c.node)
	for _, v := range c.node.Outputs {
		c.model.Graph.AddOutput(v)
	}
	return c, nil
}

func parseAttr(name, value string) (onnx.Attribute, error) {
	switch {
	case value[0] == '"':
		return onnx.StringAttr(name, strings.Trim(value, `"`)), nil
	case value[0] == '[':
		var ints []int64
		for _, s := range strings.Split(strings.Trim(value, "[]"), ",") {
			if s == "" {
				continue
			}
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil {
				return nil, err
			}
			ints = append(ints, n)
		}
		return onnx.IntsAttr(name, ints...), nil
	case strings.ContainsAny(value, "{("):
		t, err := parseConstant(value)
		return onnx.TensorAttrOf(name, t), err
	case strings.Contains(value, "."):
		f, err := strconv.ParseFloat(value, 64)
		return onnx.FloatAttr(name, f), err
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return onnx.IntAttr(name, n), err
}

func parseType(s string) (onnx.Type, error) {
	name, dims, ranked := strings.Cut(strings.TrimSuffix(s, "]"), "[")
	d, err := onnx.ParseDType(name)
	if err != nil || !ranked {
		return onnx.Type{DType: d}, err
	}
	shape := onnx.Shape{}
	if dims != "" {
		for _, k := range strings.Split(dims, ",") {
			shape = append(shape, onnx.ParseDim(k))
		}
	}
	return onnx.TensorOf(d, shape), nil
}

func parseConstant(s string) (*onnx.Tensor, error) {
	i := strings.IndexAny(s, "{(")
	d, err := onnx.ParseDType(s[:i])
	if err != nil {
		return nil, err
	}
	var values []float64
	var elems []elem
	for _, e := range strings.Split(s[i+1:len(s)-1], ",") {
		if e == "" {
			continue
		}
		f, err := strconv.ParseFloat(e, 64)
		if err != nil {
			return nil, err
		}
		values = append(values, f)
		n, _ := strconv.ParseInt(e, 10, 64)
		elems = append(elems, intElem(n))
	}
	var dims []int64
	if s[i] == '{' {
		dims = []int64{int64(len(values))}
	}
	if d.IsFloat() {
		return onnx.FloatTensor(d, values, dims...), nil
	}
	return makeTensor(onnx.TensorOf(d, onnx.StaticShape(dims...)), elems), nil
}

func addOperand(g *onnx.Graph, w string) (*onnx.Value, error) {
	if w == "_" {
		return nil, nil
	}
	if strings.ContainsAny(w, "{(") {
		t, err := parseConstant(w)
		if err != nil {
			return nil, err
		}
		return g.AddConstant("const", t), nil
	}
	t, err := parseType(w)
	return g.AddInput("in", t), err
}

// describe writes an output as the cases do.
func describe(r *Result, v *onnx.Value, values bool) string {
	s := v.Type.String()
	if !values {
		return s
	}
	elems, ok := r.elements(v)
	if !ok {
		return s + "{}?"
	}
	var parts []string
	for _, e := range elems {
		if e.float {
			parts = append(parts, strconv.FormatFloat(e.f, 'g', 7, 64))
		} else {
			parts = append(parts, e.d.String())
		}
	}
	return s + "{" + strings.Join(parts, ",") + "}"
}

func TestCases(t *testing.T) {
	for _, c := range readCases(t) {
		r, err := Model(c.model, Options{Strict: true})
		if c.wantFail != "" {
			if err == nil {
				t.Errorf("%s\n\tno error, output %s", c.line, c.node.Outputs[0].Type)
			} else if !strings.Contains(err.Error(), c.wantFail) {
				t.Errorf("%s\n\terror: %v", c.line, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s\n\terror: %v", c.line, err)
			continue
		}
		for i, want := range c.want {
			if got := describe(r, c.node.Outputs[i], strings.Contains(want, "{")); want != "_" && got != want {
				t.Errorf("%s\n\toutput %d is %s", c.line, i, got)
			}
		}
	}
}

// TestEveryRowHasACase fails when an operator is added without one. Control
// flow has its own test, since a line cannot hold a graph; sequences of
// tensors are tested by the samples.
func TestEveryRowHasACase(t *testing.T) {
	seen := map[key]bool{{"", "If"}: true, {"", "Loop"}: true, {"", "Scan"}: true, {microsoft, "AdamWOptimizer"}: true}
	for _, c := range readCases(t) {
		if c.wantFail == "" {
			seen[key{c.node.Domain(), c.node.OpType()}] = true
		}
	}
	for k, r := range rows {
		if !seen[k] {
			t.Errorf("no case for %s %s", k.domain, k.op)
		}
		if r.doc == "" || r.infer == nil || r.since < 1 {
			t.Errorf("the row of %s %s is incomplete", k.domain, k.op)
		}
	}
}
