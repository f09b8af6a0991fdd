package report

import (
	"strings"
	"testing"
)

// steps makes samples of so many steps; at says what is live and held after each.
func monitored(n int, at func(i int) (live, held int64)) []StepMemory {
	list := make([]StepMemory, n)
	for i := range list {
		live, held := at(i)
		list[i] = StepMemory{LivePeak: 1000, LiveAfter: live, Reserved: 2000, Resident: held, Held: held}
	}
	return list
}

func TestMonitor(t *testing.T) {
	noise := func(i int) int64 { return int64(i*7919%13) << 10 }
	for name, c := range map[string]struct {
		steps []StepMemory
		grows string
	}{
		"clean":                          {monitored(2000, func(i int) (int64, int64) { return 4, 90<<20 + noise(i) }), ""},
		"records of the steps":           {monitored(2000, func(i int) (int64, int64) { return 4, 90<<20 + noise(i) + int64(i)*700 }), ""},
		"a warm-up":                      {monitored(50, func(i int) (int64, int64) { return 4, 90<<20 + int64(min(i, 9))<<20 }), ""},
		"what settles":                   {monitored(60, func(i int) (int64, int64) { return 4, 90<<20 - int64(1<<24)/int64(i+1) }), ""},
		"one output kept, 4 bytes":       {monitored(50, func(i int) (int64, int64) { return 4 * int64(i+1), 90 << 20 }), "live memory after a step grows by 4 B a step, since step 11 of 50"},
		"half a MiB on the heap":         {monitored(50, func(i int) (int64, int64) { return 4, 90<<20 + noise(i) + int64(i)<<19 }), "resident memory grows by 51"},
		"in the second half alone, live": {monitored(100, func(i int) (int64, int64) { return int64(max(4, i-40)), 90 << 20 }), "live memory"},
	} {
		m := NewMonitor(c.steps)
		if m.Grows != (c.grows != "") || !strings.HasPrefix(m.Verdict, c.grows) {
			t.Errorf("%s: %s", name, m.Verdict)
		}
	}
	if m := NewMonitor(monitored(5, func(int) (int64, int64) { return 4, 1 })); m.Grows || !strings.Contains(m.Verdict, "too few") {
		t.Errorf("five steps: %s", m.Verdict)
	}
}

func TestProfile(t *testing.T) {
	runs := []NodeRun{
		{Node: "a", Op: "Gemm", Layer: "h.0", Part: PartForward, Seconds: 1, Bytes: 10, Shapes: "s"},
		{Node: "b", Op: "Gemm", Layer: "h.0", Part: PartRecomputed, Seconds: 2, Bytes: 10},
		{Node: "c", Op: "Add", Layer: "h.1", Part: PartBackward, Seconds: 1, Bytes: 100},
		{Node: "a", Op: "Gemm", Layer: "h.0", Part: PartForward, Seconds: 1, Bytes: 10, Shapes: "t"},
		{Node: "b", Op: "Gemm", Layer: "h.0", Part: PartRecomputed, Seconds: 2, Bytes: 10},
		{Node: "c", Op: "Add", Layer: "h.1", Part: PartBackward, Seconds: 1, Bytes: 100},
	}
	p := NewProfile(runs, 2, "operator", "time")
	if len(p.Rows) != 2 || p.Rows[0].Name != "Gemm" || p.Rows[0].Seconds != 3 || p.Rows[0].Calls != 2 || p.Rows[0].Bytes != 20 || p.Rows[0].Share != 0.75 || p.Rows[0].Phase != "" || p.Rows[0].Layer != "h.0" {
		t.Errorf("by operator: %+v", p.Rows)
	}
	if p := NewProfile(runs, 2, "layer", "bytes"); p.Rows[0].Name != "h.1" {
		t.Errorf("by layer, sorted by bytes: %+v", p.Rows)
	}
	if p := NewProfile(runs, 2, "phase", "calls"); len(p.Rows) != 3 || p.Rows[0].Calls != 1 {
		t.Errorf("by phase: %+v", p.Rows)
	}
	if p := NewProfile(runs, 2, "node", "time"); p.Rows[0].Name != "b" || p.Rows[1].Shapes != "t" {
		t.Errorf("by node: %+v", p.Rows)
	}
}
