package report

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
)

// Compare is the document of `compare --json`: the same feeds through every
// model. Pairs[i] sets Models[0] against Models[i+1].
type Compare struct {
	Models []*Run `json:"models"`
	Pairs  []Pair `json:"pairs"`
}

// Pair sets model B against model A; positive Saving and Overhead mean that B
// takes less memory and more time. Nil is "does not apply".
type Pair struct {
	A string `json:"a"`
	B string `json:"b"`
	// Saving and TotalSaving are shares of A's live and total peak.
	Saving      *Float `json:"saving"`
	TotalSaving *Float `json:"total_saving"`
	// KeptShare is what B's forward keeps for backward, as a share of what A's does.
	KeptShare *Float `json:"kept_by_forward_share"`
	// BackwardSaving is a share of A's peak in backward, all that exists then included.
	BackwardSaving *Float `json:"backward_peak_saving"`
	// Overhead is a share of A's median step time.
	Overhead *Float `json:"overhead"`
	// SavedBytesPerSecondLost is nil where B loses no time, or saves nothing.
	SavedBytesPerSecondLost *Float `json:"saved_bytes_per_second_lost"`
	// TheorySaving is 1 - 1/√L or what the strategy's theory says.
	TheorySaving *Float `json:"theory_saving"`
	// Expected is what was asked of the pair.
	Expected []Met `json:"expected,omitempty"`
	// Sentence says it all.
	Sentence Text `json:"sentence"`
	Difference
}

// Difference is how far B's results are from A's, over all steps compared.
type Difference struct {
	Loss *Float `json:"loss_difference"`
	// RelativeLoss is a share of A's loss, or of 1 where that is larger.
	RelativeLoss *Float `json:"relative_loss_difference"`
	Gradient     *Float `json:"max_gradient_difference"`
	// RelativeGradient is Gradient as a share of LargestGradient, the largest
	// magnitude in all of A's gradients; of graphs that return only updated values, as a
	// share of the largest update. Where there is neither, LargestGradient is nil, and
	// each output's difference is a share of its own magnitude.
	RelativeGradient *Float `json:"max_relative_gradient_difference"`
	LargestGradient  *Float `json:"largest_gradient"`
	// WorstGradient names the output that differs most, "" where none does.
	WorstGradient Text  `json:"worst_gradient"`
	BitIdentical  *bool `json:"bit_identical"`
	// ApartBecause says why B is bound to give other numbers than A, as far as that is known.
	ApartBecause []Text `json:"apart_because,omitempty"`
	// Tolerance is the bound on the differences; nil where none was asked.
	Tolerance       *Float `json:"tolerance"`
	WithinTolerance *bool  `json:"within_tolerance"`
}

// Because is why the results are bound to differ, to follow what differs; "" where nothing
// is known.
func (d *Difference) Because() string {
	if len(d.ApartBecause) == 0 {
		return ""
	}
	why := make([]string, len(d.ApartBecause))
	for i, w := range d.ApartBecause {
		why[i] = clean(string(w))
	}
	return ", as " + strings.Join(why, ", and ")
}

// Worst says in words where the results are furthest apart.
func (d *Difference) Worst() string { return d.worst() + d.Because() }

func (d *Difference) worst() string {
	loss := fmt.Sprintf("the loss differs by %s", floatOr(d.RelativeLoss, units.Number))
	if d.RelativeGradient == nil || d.RelativeLoss != nil && *d.RelativeLoss > *d.RelativeGradient {
		return loss
	}
	of := "its own largest value"
	if d.LargestGradient != nil {
		of = "the largest, " + units.Number(float64(*d.LargestGradient))
	}
	return fmt.Sprintf("%s differs by %s, which is %s of %s", textOr(string(d.WorstGradient)), floatOr(d.Gradient, units.Number),
		units.Number(float64(*d.RelativeGradient)), of)
}

// NewPair compares what was measured of two runs and adds the differences.
func NewPair(a, b *Run, d Difference) Pair {
	p := Pair{A: a.Model, B: b.Model, Difference: d}
	p.Saving = share(a.Memory.LivePeakBytes, b.Memory.LivePeakBytes)
	p.TotalSaving = share(a.Memory.TotalPeakBytes, b.Memory.TotalPeakBytes)
	p.KeptShare = keptShare(a.Phases, b.Phases)
	if a.Phases != nil && b.Phases != nil {
		p.BackwardSaving = share(a.Phases.BackwardPeak, b.Phases.BackwardPeak)
	}
	lost := b.MedianSeconds() - a.MedianSeconds()
	if !math.IsNaN(lost) && a.MedianSeconds() > 0 && b.Error == "" {
		p.Overhead = new(Float(lost / a.MedianSeconds()))
		if p.Saving != nil && lost > 0 && *p.Saving > 0 {
			saved := *a.Memory.LivePeakBytes - *b.Memory.LivePeakBytes
			p.SavedBytesPerSecondLost = new(Float(float64(saved) / lost))
		}
	}
	if b.Plan != nil {
		p.TheorySaving = b.Plan.TheorySaving
	}
	return p
}

// share is how much less b is than a.
func share(a, b *int64) *Float {
	if a == nil || b == nil || *a == 0 {
		return nil
	}
	return new(Float(1 - float64(*b)/float64(*a)))
}

// Brief is the comparison without its timelines, for programs that read the
// figures only.
func (c *Compare) Brief() *Compare {
	b := &Compare{Pairs: c.Pairs}
	for _, m := range c.Models {
		short := *m
		short.Timeline = nil
		b.Models = append(b.Models, &short)
	}
	return b
}

// Rehearsed reports that the models ran without a device.
func (c *Compare) Rehearsed() bool {
	return slices.ContainsFunc(c.Models, func(r *Run) bool { return r.Rehearsed })
}

// pairOf finds the pair whose B is Models[i]; nil for the first model.
func (c *Compare) pairOf(i int) *Pair {
	if i < 1 || i > len(c.Pairs) {
		return nil
	}
	return &c.Pairs[i-1]
}

// names are the variants' names for legends: clean and unique.
func (c *Compare) names() []string { return c.namesWithin(40) }

// namesWithin are names of at most n letters, but for a number behind equal ones.
func (c *Compare) namesWithin(n int) []string {
	seen := map[string]int{}
	names := make([]string, len(c.Models))
	for i, m := range c.Models {
		names[i] = clean(m.Name())
	}
	for i, name := range shorten(names, n) {
		seen[name]++
		if k := seen[name]; k > 1 {
			name += " (" + itoa(k) + ")"
		}
		names[i] = name
	}
	return names
}

// shorten cuts names to n letters. What all long ones begin and end with goes first,
// but for a few letters, as it does not tell them apart.
func shorten(names []string, n int) []string {
	var long [][]rune
	for _, name := range names {
		if r := []rune(name); len(r) > n {
			long = append(long, r)
		}
	}
	begin, end := 0, 0
	if len(long) > 1 {
		least := len(long[0])
		for _, r := range long {
			least = min(least, len(r))
		}
		all := func(at func([]rune) rune) bool {
			return !slices.ContainsFunc(long, func(r []rune) bool { return at(r) != at(long[0]) })
		}
		for begin < least && all(func(r []rune) rune { return r[begin] }) {
			begin++
		}
		for end < least-begin && all(func(r []rune) rune { return r[len(r)-1-end] }) {
			end++
		}
	}
	keep := n / 5
	out := make([]string, len(names))
	for i, name := range names {
		r := []rune(name)
		switch {
		case len(r) <= n:
		case begin <= keep && end <= keep, begin == len(r): // or they are all equal
			name = elide(name, n)
		default:
			head, core, tail := string(r[:begin]), string(r[begin:len(r)-end]), string(r[len(r)-end:])
			if begin > keep {
				head = string(r[:keep]) + "…"
			}
			if end > keep {
				tail = "…" + string(r[len(r)-keep:])
			}
			name = head + elide(core, n-2*keep-2) + tail
		}
		out[i] = name
	}
	return out
}

// MarshalJSON writes empty lists as [].
func (c Compare) MarshalJSON() ([]byte, error) {
	type plain Compare
	p := plain(c)
	p.Models, p.Pairs = list(p.Models), list(p.Pairs)
	return json.Marshal(p)
}
