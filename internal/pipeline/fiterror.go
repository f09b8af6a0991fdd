package pipeline

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// A FitError says that nothing fits the memory: what the least consists of, and what
// would help.
type FitError struct {
	Path   string
	Memory int64 // bytes
	// Nearest is the file that takes least, of those that were looked at.
	Nearest *Fitted
	// Split is its split, in words; Helps are what would take less.
	Split string
	Helps []string
}

// Error is one line.
func (e *FitError) Error() string {
	var parts []string
	for _, p := range append(e.Nearest.Total.Parts(), e.Nearest.Beside...) {
		if p.Bytes > 0 {
			parts = append(parts, p.What+" "+units.Bytes(p.Bytes))
		}
	}
	return fmt.Sprintf("%s: nothing fits in %s: the least found takes %s, with %s (%s); %s",
		e.Path, units.Bytes(e.Memory), units.Bytes(e.Nearest.Bytes), e.Split, strings.Join(parts, ", "), strings.Join(e.Helps, ", or "))
}

// unfit is the error for a memory that nothing fits: what comes closest.
func (f *fitting) unfit() error {
	var best *attempt
	for _, a := range f.attempts {
		if a.file == nil || errors.Is(a.err, errMost) {
			continue
		}
		if best == nil || a.bytes(a.file) < best.bytes(best.file) {
			best = a
		}
	}
	if best == nil { // what no plan changes is more already: what is quickly planned says enough
		for _, a := range []*attempt{f.attempts[0], slices.MinFunc(f.attempts, func(a, b *attempt) int {
			return cmp.Compare(a.bytes(a.planner.asked.reordered), b.bytes(b.planner.asked.reordered))
		})} {
			if a.full == nil {
				var err error
				if a.full, err = a.planner.PlanWithin("full", Budget{}); err != nil {
					return fmt.Errorf("%s: %w", f.source.Path, err)
				}
			}
			a.file = a.full
			if best == nil || a.bytes(a.file) < best.bytes(best.file) {
				best = a
			}
		}
	}
	nearest, err := f.fitted(best)
	if err != nil {
		return err
	}
	nearest.Path = ""
	e := &FitError{Path: f.source.Path, Memory: f.o.Memory, Split: best.text(), Nearest: nearest}
	e.Helps = f.helps(best, e)
	return e
}

// helps lists what would take less than an attempt that does not fit.
func (f *fitting) helps(a *attempt, e *FitError) []string {
	list := []string{"raise --memory to " + units.BytesUp(e.Nearest.Bytes)}
	if a.derived != nil {
		state := e.Nearest.Total.State
		if i := slices.IndexFunc(a.beside, func(p Part) bool { return p.What == stateApart }); i >= 0 {
			state = a.beside[i].Bytes // the step's are sums of gradients
		}
		switch kind := f.o.Derive.Update.Kind; {
		case state == 0 || f.o.Derive.Update.Accumulate > 1:
		case kind == optim.Lightest:
			list = append(list, fmt.Sprintf("train without --momentum, which keeps %s of state", units.Bytes(state)))
		default:
			list = append(list, fmt.Sprintf("train with --optimizer %s, without the state of %s (%s in all)", optim.Lightest, kind, units.Bytes(state)))
		}
		list = append(list, "train fewer parameters, with --frozen")
	}
	if over := e.Nearest.Bytes - f.o.Memory; e.Nearest.Total.Live > over/2 {
		if f.axis.name != "" && a.micro > 1 {
			list = append(list, "take a smaller batch")
		}
		list = append(list, "take shorter sequences")
		if f.o.Pipeline.Precision == nil {
			list = append(list, "keep values in half, with --precision bf16 --stash-only")
		}
	}
	return list
}
