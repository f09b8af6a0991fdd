package planner

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
)

func TestPlanFile(t *testing.T) {
	p := transformer(3, 1024, 256, 256, 8)
	for _, strategy := range []string{"none", "full", "selective", "optimal"} {
		plan, err := Solve(p, strategy)
		if err != nil {
			t.Fatal(err)
		}
		plan.ControlEdges = append([]ControlEdge(nil), plan.ControlEdges...)
		var buf bytes.Buffer
		if err := WritePlan(&buf, p, plan); err != nil {
			t.Fatal(err)
		}
		back, err := ReadPlan(bytes.NewReader(buf.Bytes()), p)
		if err != nil {
			t.Fatalf("%s: %v", strategy, err)
		}
		if !reflect.DeepEqual(back.Schedule, plan.Schedule) || !reflect.DeepEqual(back.Boundaries, plan.Boundaries) {
			t.Errorf("%s: the schedule does not survive", strategy)
		}
		var again bytes.Buffer
		if err := WritePlan(&again, p, back); err != nil || again.String() != buf.String() {
			t.Errorf("%s: a second writing differs: %v", strategy, err)
		}
	}
}

// edit writes the plan of a strategy, changes the text and reads it again.
func edit(t *testing.T, p *Problem, strategy string, change func(string) string) (*Plan, error) {
	t.Helper()
	plan, err := Solve(p, strategy)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := WritePlan(&buf, p, plan); err != nil {
		t.Fatal(err)
	}
	text := change(buf.String())
	if text == buf.String() {
		t.Fatal("the edit changes nothing")
	}
	return ReadPlan(strings.NewReader(text), p)
}

func TestPlanFileEdited(t *testing.T) {
	p := transformer(3, 1024, 256, 256, 8)
	var softmax int
	for op := range p.Ops {
		if p.Ops[op].Type == "Softmax" {
			softmax = op
			break
		}
	}
	value := p.Values[p.Graph.Nodes[softmax].Outputs[0]].Name
	drop, err := edit(t, p, "none", func(s string) string { return strings.Replace(s, "  \""+value+"\",\n", "", 1) })
	if err != nil || drop.Recomputed(p)[softmax] != 1 {
		t.Errorf("taken out of keep: %v", err)
	}
	again, err := edit(t, p, "none", func(s string) string {
		return strings.Replace(s, "\"recompute\": []", "\"recompute\": [\""+p.Ops[softmax].Name+"\"]", 1)
	})
	if err != nil || !reflect.DeepEqual(again.Schedule, drop.Schedule) {
		t.Errorf("added to recompute: %v", err)
	}
	keep, err := edit(t, p, "full", func(s string) string {
		return strings.Replace(s, "\"keep\": [", "\"keep\": [\""+value+"\",", 1)
	})
	if err != nil || keep.Recomputed(p)[softmax] != 0 {
		t.Errorf("added to keep: %v", err)
	}
	for _, bad := range []struct{ old, new, want string }{
		{"\"keep\": [", "\"keep\": [\"nothing\",", `has no value "nothing"`},
		{"\"keep\": [", "\"keep\": [\"x\",", `plan: keep: the graph has no value "x"`},
		{"\"keep\": [", "\"keep\": [\"w10\",", `not a forward value`},
		{"\"keep\": [", "\"keep\": [3,", "cannot unmarshal number"},
		{"\"strategy\"", "\"strategie\"", "unknown field"},
		{planFormat, "remat-plan/9", "format"},
		{"\"recompute\": []", "\"recompute\": [\"Loss_0\"]", "has no operator"},
		{"\"schedule\": [", "\"schedule\": [\"" + p.Ops[len(p.Ops)-1].Name + "\",", "runs before"},
	} {
		_, err := edit(t, p, "none", func(s string) string { return strings.Replace(s, bad.old, bad.new, 1) })
		if err == nil || !strings.Contains(err.Error(), bad.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", bad.new, err, bad.want)
		}
	}
}

func TestExplain(t *testing.T) {
	p := transformer(3, 1024, 256, 256, 8)
	plan, err := Solve(p, "full")
	if err != nil {
		t.Fatal(err)
	}
	reasons, err := Explain(p, plan)
	if err != nil {
		t.Fatal(err)
	}
	boundaries := 0
	for i := range reasons {
		r := &reasons[i]
		if r.Boundary {
			boundaries++
		}
		if r.Name == "" || r.Bytes < 0 || r.SavedFLOPs < 0 || r.MustStay != (r.Why != "") {
			t.Errorf("%+v", r)
		}
	}
	if boundaries < 3 {
		t.Errorf("%d boundaries explained, want the layers'", boundaries)
	}
}
