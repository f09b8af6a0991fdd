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

// A ScheduleError says what of a schedule has no meaning.
type ScheduleError struct {
	Field  string // of Schedule
	Reason string // begins with the value
}

// flags are the fields as the command has them.
var flags = map[string]string{"Kind": "--schedule", "Steps": "--steps", "LR": "--lr", "MinLR": "--min-lr", "Warmup": "--warmup"}

func (e *ScheduleError) Error() string { return flags[e.Field] + " " + e.Reason }

// Check refuses what has no meaning, with a ScheduleError.
func (s *Schedule) Check() error {
	bad := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) || x < 0 || x > math.MaxFloat32 }
	wrong := func(field, reason string, values ...any) error {
		return &ScheduleError{field, fmt.Sprintf(reason, values...)}
	}
	switch {
	case s.Kind != "constant" && s.Kind != "linear" && s.Kind != "cosine":
		return wrong("Kind", "%q: want constant, linear or cosine", s.Kind)
	case s.Steps < 1:
		return wrong("Steps", "%d: want at least 1", s.Steps)
	case bad(s.LR):
		return wrong("LR", "%v: want a finite number that is not negative", s.LR)
	case bad(s.MinLR):
		return wrong("MinLR", "%v: want a finite number that is not negative", s.MinLR)
	case s.MinLR > s.LR:
		return wrong("MinLR", "%v is above the learning rate of %v", s.MinLR, s.LR)
	case s.MinLR > 0 && s.Kind == "constant":
		return wrong("MinLR", "%v: a constant schedule never falls: take linear or cosine", s.MinLR)
	case s.Warmup < 0:
		return wrong("Warmup", "%d: want a number of steps that is not negative", s.Warmup)
	case s.Warmup > s.Steps:
		return wrong("Warmup", "%d is longer than the training of %d steps", s.Warmup, s.Steps)
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
