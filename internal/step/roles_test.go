package step

import (
	"maps"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

func parse(t *testing.T, text string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse("model ir=9 opset=20\ngraph g {\n" + text + "}\n")
	if err != nil {
		t.Fatal(err)
	}
	return m
}

const trained = `in x float32[4]
in w float32[4]
init c float32[4] = [1, 2, 3, 4]
h = Mul(x, w)
loss = ReduceSum(h) {keepdims=0}
w.grad = Mul(x, c)
w.new = Sub(w, w.grad)
out loss float32[]
out w.grad float32[4]
out w.new float32[4]
`

func TestRolesAreKept(t *testing.T) {
	m := parse(t, trained)
	if r, stated, err := RolesOf(m, nil); stated || err != nil || r.Training() {
		t.Errorf("a file that says nothing: %+v, %v, %v", r, stated, err)
	}
	want := Roles{Loss: "loss", Grad: map[string]string{"w": "w.grad"}, New: map[string]string{"w": "w.new"}}
	if err := want.Write(m); err != nil {
		t.Fatal(err)
	}
	got, stated, err := RolesOf(m, nil)
	if err != nil || !stated || got.Loss != "loss" || !maps.Equal(got.Grad, want.Grad) || !maps.Equal(got.New, want.New) || !got.Training() {
		t.Errorf("%+v, %v, %v", got, stated, err)
	}
	if err := got.Check(m.Graph); err != nil {
		t.Error(err)
	}
	other := Roles{Loss: "w.new"}
	if got, stated, err := RolesOf(m, &other); err != nil || !stated || got.Loss != "w.new" || got.Training() {
		t.Errorf("given roles do not count: %+v, %v, %v", got, stated, err)
	}
}

func TestRolesCheck(t *testing.T) {
	g := parse(t, trained).Graph
	for name, r := range map[string]Roles{
		`no output "h"`:                 {Loss: "h"},
		`no output "nothing"`:           {Grad: map[string]string{"w": "nothing"}},
		`no input or initializer "h"`:   {New: map[string]string{"h": "w.new"}},
		`no input or initializer "w.v"`: {New: map[string]string{"w.v": "w.new"}},
		`no output "c"`:                 {New: map[string]string{"c": "c"}},
		`buffer "w" has no next value`:  {Buffers: []string{"w"}},
		`buffer "w" is listed twice`:    {New: map[string]string{"w": "w.new"}, Buffers: []string{"w", "w"}},
	} {
		if err := r.Check(g); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v, want %q", r, err, name)
		}
	}
	all := Roles{Loss: "h", Grad: map[string]string{"w": "w.grad", "c": "gone"}, New: map[string]string{"gone": "w.new", "w": "w.new"}}
	got := all.Within(g)
	if err := got.Check(g); err != nil || got.Loss != "" || !maps.Equal(got.Grad, map[string]string{"w": "w.grad"}) || !maps.Equal(got.New, map[string]string{"w": "w.new"}) {
		t.Errorf("%+v, %v", got, err)
	}
	if len(all.Grad) != 2 {
		t.Error("Within changed the roles that it was asked of")
	}
}

// TestParseRoles: what a file says and nobody reads would be lost.
func TestParseRoles(t *testing.T) {
	for text, want := range map[string]string{
		`{"loss": "l", "gradients": {}}`: "gradients",
		`{"loss": 1}`:                    "cannot unmarshal",
		`{"loss": "l"} {}`:               "after the JSON",
		`{"loss": "l"`:                   "unexpected EOF",
		``:                               "EOF",
	} {
		if r, err := ParseRoles([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %+v, %v, want %q", text, r, err, want)
		}
	}
	if r, err := ParseRoles([]byte(`{"loss": "l", "new": null}` + "\n")); err != nil || r.Loss != "l" {
		t.Errorf("%+v, %v", r, err)
	}
	m := parse(t, trained)
	m.SetMetadata(RolesKey, `{"los": "loss"}`)
	if _, stated, err := RolesOf(m, nil); !stated || err == nil || !strings.Contains(err.Error(), RolesKey) {
		t.Errorf("%v, %v", stated, err)
	}
}
