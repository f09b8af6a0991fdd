package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// The documents of docs/cli.md: every field here must be in what is written,
// with the same kind of value (null apart).
const (
	contractRun = `{"model": "...", "provider": "cpu", "ort_version": "1.31.1", "threads": 2, "opt_level": 1,
 "memory": {"parameter_bytes": 0, "state_bytes": 0, "feed_bytes": 0, "output_bytes": 0, "session_bytes": 0,
            "live_peak_bytes": 0, "total_peak_bytes": 0, "arena_peak_bytes": 0, "reserved_bytes": 0, "arena_reserved_bytes": 0, "rss_peak_bytes": 0,
            "predicted_live_peak_bytes": 0, "predicted_session_bytes": 0, "predicted_reserved_bytes": 0,
            "predicted_arena_reserved_bytes": 0},
 "steps": [{"seconds": 0.0, "outputs": {"loss": 0.0}}],
 "top_time": [{"node": "", "op": "", "seconds": 0.0, "share": 0.0}], "top_memory": [{"node": "", "op": "", "bytes": 0, "share": 0.0}]}`
	contractPlan = `{"strategy": "sqrt", "boundaries": ["..."], "kept": ["..."], "recomputed_nodes": 0,
 "flops": 0, "recompute_flops": 0, "overhead": 0.0,
 "peak_bytes_before": 0, "peak_bytes_scheduled": 0, "peak_bytes_after": 0, "saving": 0.0, "theory_saving": 0.0,
 "lower_bound_bytes": 0, "solver_seconds": 0.0, "budget_bytes": 0, "feasible": true}`
	contractCompare = `{"models": [` + contractRun + `], "pairs": [{"a": "", "b": "", "saving": 0.0, "overhead": 0.0, "loss_difference": 0.0, "max_gradient_difference": 0.0, "max_relative_gradient_difference": 0.0, "bit_identical": true}]}`
)

// lacks lists what the contract has and the document has not.
func lacks(want, got any, path string) []string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{path + " is no object"}
		}
		var missing []string
		for k := range w {
			if v, ok := g[k]; !ok {
				missing = append(missing, path+"."+k)
			} else {
				missing = append(missing, lacks(w[k], v, path+"."+k)...)
			}
		}
		return missing
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) == 0 {
			return []string{path + " is no list with elements"}
		}
		return lacks(w[0], g[0], path+"[0]")
	}
	if reflect.TypeOf(want) != reflect.TypeOf(got) {
		return []string{fmt.Sprintf("%s is %T, want %T", path, got, want)}
	}
	return nil
}

func written(t *testing.T, document any) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := WriteJSON(&b, document); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func decode(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestContract(t *testing.T) {
	c := fixtureCompare()
	for name, x := range map[string]struct {
		contract string
		document any
	}{
		"run": {contractRun, c.Models[1]}, "plan": {contractPlan, c.Models[1].Plan}, "compare": {contractCompare, c},
	} {
		missing := lacks(decode(t, []byte(x.contract)), decode(t, written(t, x.document)), name)
		if slices.Sort(missing); len(missing) > 0 {
			t.Errorf("the document differs from the contract:\n%s", strings.Join(missing, "\n"))
		}
	}
}

func TestRoundTrip(t *testing.T) {
	first := written(t, fixtureCompare())
	var c Compare
	if err := json.Unmarshal(first, &c); err != nil {
		t.Fatal(err)
	}
	if second := written(t, c); !bytes.Equal(first, second) {
		t.Error("a comparison read and written again differs")
	}
	hostile := written(t, fixtureHostile())
	c = Compare{}
	if err := json.Unmarshal(hostile, &c); err != nil {
		t.Fatal(err)
	}
	if second := written(t, c); !bytes.Equal(hostile, second) {
		t.Error("a comparison of hostile names read and written again differs")
	}
}

func TestBrief(t *testing.T) {
	c := fixtureCompare()
	if data := written(t, c.Brief()); strings.Contains(string(data), "timeline") || !strings.Contains(string(data), "categories") {
		t.Error("the brief document has a timeline, or no peak")
	}
	if c.Models[0].Timeline == nil {
		t.Error("Brief changed the comparison")
	}
}

// What does not apply is null, lists are lists, NaN and infinities strings.
func TestEmptyDocuments(t *testing.T) {
	for want, document := range map[string]any{
		`"live_peak_bytes": null`:  Run{},
		`"steps": []`:              &Run{},
		`"error": null`:            Run{},
		`"peak": null`:             Run{},
		`"outputs": {}`:            Run{Steps: []Step{{}}},
		`"loss": "NaN"`:            Run{Steps: []Step{{Outputs: map[string]Float{"loss": Float(math.NaN())}}}},
		`"boundaries": []`:         Plan{},
		`"budget_bytes": null`:     Plan{},
		`"overhead": "Infinity"`:   Plan{Overhead: Float(math.Inf(1))},
		`"saving": "-Infinity"`:    Plan{Saving: Float(math.Inf(-1))},
		`"pairs": []`:              Compare{},
		`"bit_identical": null`:    Compare{Pairs: []Pair{{}}},
		`"total_peak_bytes": null`: &Compare{Models: []*Run{{}}},
	} {
		if got := string(written(t, document)); !strings.Contains(got, want) {
			t.Errorf("no %s in %s", want, got)
		}
	}
}

func TestFloat(t *testing.T) {
	for _, x := range []float64{0, 1.5, -1e-300, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN()} {
		data, err := json.Marshal(Float(x))
		var f Float
		if err := json.Unmarshal(data, &f); err != nil {
			t.Error(err)
		}
		if y := float64(f); err != nil || y != x && !(math.IsNaN(x) && math.IsNaN(y)) {
			t.Errorf("%v became %s and %v", x, data, y)
		}
	}
	for _, s := range []string{`"nan"`, `"1"`, `true`, `{}`} {
		var f Float
		if err := json.Unmarshal([]byte(s), &f); err == nil {
			t.Errorf("%s was read as %v", s, f)
		}
	}
}

func TestPair(t *testing.T) {
	run := func(live, total int64, seconds float64) *Run {
		return &Run{Memory: Memory{LivePeakBytes: &live, TotalPeakBytes: &total}, StepSeconds: &Spread{Median: seconds}}
	}
	a := run(1000, 2000, 2)
	p := NewPair(a, run(400, 1500, 2.5), Difference{})
	if *p.Saving != 0.6 || *p.TotalSaving != 0.25 || *p.Overhead != 0.25 || *p.SavedBytesPerSecondLost != 1200 {
		t.Errorf("pair: saving %v, total %v, overhead %v, rate %v", *p.Saving, *p.TotalSaving, *p.Overhead, *p.SavedBytesPerSecondLost)
	}
	if p := NewPair(a, run(400, 1500, 1.5), Difference{}); *p.Overhead != -0.25 || p.SavedBytesPerSecondLost != nil {
		t.Errorf("a faster variant: overhead %v, rate %v", *p.Overhead, p.SavedBytesPerSecondLost)
	}
	if p := NewPair(a, &Run{Error: "out of memory"}, Difference{}); p.Saving != nil || p.Overhead != nil {
		t.Errorf("a failed variant has a saving or an overhead: %+v", p)
	}
}

func TestSpread(t *testing.T) {
	if s := NewSpread([]float64{4, 1, 3, 2}); *s != (Spread{Count: 4, Median: 2.5, Quartile: 1.75, Upper: 3.25, Low: 1, High: 4}) {
		t.Errorf("%+v", s)
	}
	if s := NewSpread([]float64{7}); *s != (Spread{Count: 1, Median: 7, Quartile: 7, Upper: 7, Low: 7, High: 7}) {
		t.Errorf("%+v", s)
	}
	if NewSpread(nil) != nil {
		t.Error("a spread of nothing")
	}
}

func TestDominated(t *testing.T) {
	points := []ParetoPoint{{PeakBytes: 10, Overhead: 0}, {PeakBytes: 5, Overhead: 1}, {PeakBytes: 5, Overhead: 2}, {PeakBytes: 10, Overhead: 0}, {PeakBytes: 11, Overhead: 0.5}}
	MarkDominated(points)
	for i, want := range []bool{false, false, true, false, true} {
		if points[i].Dominated != want {
			t.Errorf("point %d: dominated %v", i, points[i].Dominated)
		}
	}
}
