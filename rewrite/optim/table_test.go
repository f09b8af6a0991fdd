package optim

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
)

// TestEveryRowHasACase: each optimizer is trained by the tests, and named where
// people read what there is.
func TestEveryRowHasACase(t *testing.T) {
	docs, err := os.ReadFile("../../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range Kinds() {
		found := false
		for _, o := range cases {
			found = found || o.Kind == k
		}
		if !found {
			t.Errorf("%s has no row in cases", k)
		}
		if !strings.Contains(string(docs), string(k)) {
			t.Errorf("docs/cli.md does not name %s", k)
		}
		if k.Rate() <= 0 {
			t.Errorf("%s has no rate to learn with", k)
		}
	}
	for _, s := range Settings() {
		if len(s.Kinds()) == 0 {
			t.Errorf("no optimizer reads --%s", s.Name)
		}
	}
}

// TestLightest: by the defaults the lightest keeps nothing of a parameter, and every
// other optimizer something.
func TestLightest(t *testing.T) {
	for _, k := range Kinds() {
		m, params := toyModel(t)
		res, err := Apply(m, params, Defaults(k))
		if err != nil {
			t.Fatal(err)
		}
		if light := len(res.States) == 0; light != (k == Lightest) {
			t.Errorf("%s keeps %d tensors, and the lightest is %s", k, len(res.States), Lightest)
		}
	}
}

// TestRowsTellTheirState: what a row says it keeps is what its update keeps, and
// every next value depends on products that say what changes nothing.
func TestRowsTellTheirState(t *testing.T) {
	for name, o := range cases {
		m, params := toyModel(t)
		res, err := Apply(m, params, o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		var made, told []string
		for _, s := range res.States {
			if s.Name != normInput {
				made = append(made, s.Name)
			}
		}
		for _, p := range params {
			for _, suffix := range (&applier{m: m, loss: m, g: m.Graph, params: params, o: o}).stateSuffixes(p.Value) {
				told = append(told, p.Value.Name+suffix)
			}
		}
		slices.Sort(made)
		slices.Sort(told)
		if !slices.Equal(made, told) {
			t.Errorf("%s: the row tells of %v, the update keeps %v", name, told, made)
		}
		for in, out := range res.Next {
			if in.Name != normInput && !neutralized(out, 8) {
				t.Errorf("%s: %s depends on no product with a neutral value", name, out.Name)
			}
			if step := out.Producer.Origin().Step; in.Name != normInput && !strings.HasPrefix(step, "next") {
				t.Errorf("%s: the node of %s says that it is the step %q, and not that it makes a next value", name, out.Name, step)
			}
			if moment := strings.HasSuffix(in.Name, ".m"); moment != Moments(m.Graph)[out.Name] {
				t.Errorf("%s: %s is a moment: %v", name, out.Name, !moment)
			}
		}
	}
}

// neutralized reports that v, or what it is made from in a few steps, is a product
// that says what changes nothing.
func neutralized(v *onnx.Value, steps int) bool {
	if v.Producer == nil || steps == 0 {
		return false
	}
	if _, ok := neutral(v.Producer); ok {
		return true
	}
	return slices.ContainsFunc(v.Producer.Inputs, func(x *onnx.Value) bool { return neutralized(x, steps-1) })
}

// TestUpdatesApart: updates apart from the gradients keep what they keep beside them, and
// the sums. Which of them a matrix gets is told by the graph that has the loss.
func TestUpdatesApart(t *testing.T) {
	names := func(r *Result) (list []string) {
		for _, s := range r.States {
			list = append(list, s.Name)
		}
		slices.Sort(list)
		return list
	}
	for _, k := range Kinds() {
		o := Defaults(k)
		m, params := toyModel(t)
		together, err := Apply(m, params, o)
		if err != nil {
			t.Fatal(k, err)
		}
		o.Sums = true
		m, params = toyModel(t)
		sums, err := Apply(m, params, o)
		if err != nil {
			t.Fatal(k, err)
		}
		var values []*onnx.Value
		for _, p := range params {
			values = append(values, p.Value)
		}
		apart, err := Updates(m, values, o)
		if err != nil {
			t.Fatal(k, err)
		}
		roles, _, err := step.RolesOf(apart, nil)
		if err != nil {
			t.Fatal(k, err)
		}
		want := slices.Sorted(slices.Values(append(names(together), names(sums)...)))
		var got []string
		for in := range roles.New {
			if !slices.ContainsFunc(values, func(v *onnx.Value) bool { return v.Name == in }) {
				got = append(got, in)
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: apart %v are kept, together %v", k, got, want)
		}
	}
}

// TestStateOf: all that an optimizer keeps of a parameter is listed.
func TestStateOf(t *testing.T) {
	for _, k := range Kinds() {
		o := Defaults(k)
		o.Accumulate = 2
		m, params := toyModel(t)
		var known []string
		for _, p := range params {
			known = append(known, StateOf(p.Value.Name)...)
		}
		r, err := Apply(m, params, o)
		if err != nil {
			t.Fatal(k, err)
		}
		for _, s := range r.States {
			if !slices.Contains(known, s.Name) {
				t.Errorf("%s: %s is not listed", k, s.Name)
			}
		}
	}
	for _, h := range codedState(nil, &onnx.Value{Type: onnx.TensorOf(onnx.Float32, onnx.StaticShape(64, 128))}) {
		if !slices.Contains(stateNames, h.name) {
			t.Errorf("in eight bits: %s is not listed", h.name)
		}
	}
}
