package train

import (
	"fmt"
	"math"
)

// A Schedule gives each step its learning rate.
//
// With T steps, W of warm-up, peak rate r and least rate m, step s, counted from 1,
// has k = s-1 steps behind it and the rate
//
//	k < W      r · k/W                            so the first step of a warm-up has 0
//	constant   r
//	linear     m + (r-m) · (T-k)/(T-W)
//	cosine     m + (r-m) · (1 + cos(π (k-W)/(T-W)))/2
//
// which for m = 0 is what transformers' get_constant_, get_linear_ and
// get_cosine_schedule_with_warmup give.
type Schedule struct {
	Kind   string // "constant", "linear" or "cosine"
	LR     float64
	MinLR  float64
	Warmup int64
	Steps  int64
}

// Schedules are the kinds.
var Schedules = []string{"constant", "linear", "cosine"}

// Check refuses what has no meaning; the flags are named as the command has them.
func (s *Schedule) Check() error {
	bad := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) || x < 0 || x > math.MaxFloat32 }
	switch {
	case s.Kind != "constant" && s.Kind != "linear" && s.Kind != "cosine":
		return fmt.Errorf("--schedule %q: want constant, linear or cosine", s.Kind)
	case s.Steps < 1:
		return fmt.Errorf("--steps %d: want at least 1", s.Steps)
	case bad(s.LR):
		return fmt.Errorf("--lr %v: want a finite number that is not negative", s.LR)
	case bad(s.MinLR):
		return fmt.Errorf("--min-lr %v: want a finite number that is not negative", s.MinLR)
	case s.MinLR > s.LR:
		return fmt.Errorf("--min-lr %v is above --lr %v", s.MinLR, s.LR)
	case s.MinLR > 0 && s.Kind == "constant":
		return fmt.Errorf("--min-lr %v: a constant schedule never falls: use --schedule linear or cosine", s.MinLR)
	case s.Warmup < 0:
		return fmt.Errorf("--warmup %d: want a number of steps that is not negative", s.Warmup)
	case s.Warmup > s.Steps:
		return fmt.Errorf("--warmup %d is longer than the training of %d steps", s.Warmup, s.Steps)
	}
	return nil
}

// Rate is the learning rate of a step, counted from 1.
func (s *Schedule) Rate(step int64) float64 {
	k := step - 1
	if k < s.Warmup {
		return s.LR * (float64(k) / float64(s.Warmup))
	}
	span := float64(max(1, s.Steps-s.Warmup))
	left := 1.0
	switch s.Kind {
	case "linear":
		left = max(0, float64(s.Steps-k)/span)
	case "cosine":
		left = 0.5 * (1 + math.Cos(math.Pi*min(1, float64(k-s.Warmup)/span)))
	}
	if s.MinLR == 0 {
		return s.LR * left
	}
	return s.MinLR + (s.LR-s.MinLR)*left
}
