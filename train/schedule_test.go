package train

import (
	"math"
	"strings"
	"testing"
)

// TestSchedules: the rates that transformers 5.23 gives, from
// get_constant_schedule_with_warmup, get_linear_ and get_cosine_schedule_with_warmup
// for a rate of 0.5, 3 steps of warm-up and 8 in all: the rate that each step's update
// used.
func TestSchedules(t *testing.T) {
	for kind, want := range map[string][]float64{
		"constant": {0, 0.16666666666666666, 0.3333333333333333, 0.5, 0.5, 0.5, 0.5, 0.5},
		"linear":   {0, 0.16666666666666666, 0.3333333333333333, 0.5, 0.4, 0.3, 0.2, 0.1},
		"cosine":   {0, 0.16666666666666666, 0.3333333333333333, 0.5, 0.45225424859373686, 0.32725424859373686, 0.17274575140626317, 0.04774575140626314},
	} {
		s := Schedule{Kind: kind, LR: 0.5, Warmup: 3, Steps: 8}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if got := s.Rate(int64(i + 1)); math.Abs(got-w) > 1e-16 {
				t.Errorf("%s, step %d: %v, want %v", kind, i+1, got, w)
			}
		}
		s.MinLR, s.Warmup = 0.1, 0
		if kind == "constant" {
			continue
		}
		if got := s.Rate(1); math.Abs(got-0.5) > 1e-15 {
			t.Errorf("%s begins with %v", kind, got)
		}
		if got := s.Rate(9); math.Abs(got-0.1) > 1e-15 { // the step after the last
			t.Errorf("%s ends with %v", kind, got)
		}
		for step := int64(2); step <= 8; step++ {
			if a, b := s.Rate(step-1), s.Rate(step); b >= a || b < 0.1 {
				t.Errorf("%s: from %v to %v", kind, a, b)
			}
		}
	}
}

func TestSchedulesThatAreNone(t *testing.T) {
	ok := Schedule{Kind: "cosine", LR: 1, MinLR: 0.5, Warmup: 10, Steps: 10}
	if err := ok.Check(); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		change func(*Schedule)
		want   string
	}{
		{func(s *Schedule) { s.Kind = "step" }, `--schedule "step"`},
		{func(s *Schedule) { s.Steps = 0 }, "--steps 0"},
		{func(s *Schedule) { s.Warmup = 11 }, "--warmup 11 is longer"},
		{func(s *Schedule) { s.Warmup = -1 }, "--warmup -1"},
		{func(s *Schedule) { s.LR = math.NaN() }, "--lr NaN"},
		{func(s *Schedule) { s.LR = math.Inf(1) }, "--lr +Inf"},
		{func(s *Schedule) { s.LR = -1 }, "--lr -1"},
		{func(s *Schedule) { s.MinLR = 2 }, "above"},
		{func(s *Schedule) { s.MinLR = -2 }, "--min-lr -2"},
		{func(s *Schedule) { s.Kind = "constant" }, "constant schedule never falls"},
	} {
		s := ok
		c.change(&s)
		if err := s.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", s, err, c.want)
		}
	}
}
