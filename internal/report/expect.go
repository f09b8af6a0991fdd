package report

// What a comparison is expected to show, and what it shows in one sentence.
//
//	saving>=30%,overhead<=30%,same-bits

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
)

// An Expectation is a bound on one figure of a pair.
type Expectation struct {
	What  string // as it was written
	name  string
	op    string
	bound float64
}

// A Met expectation says what a pair has for it, nil where it has nothing.
type Met struct {
	What  string `json:"what"`
	Value *Float `json:"value"`
	Holds bool   `json:"holds"`
}

// expected are the figures that can be bounded, and sameBits what needs no bound.
var expected = []struct {
	name string
	of   func(*Pair) *Float
}{
	{"saving", func(p *Pair) *Float { return p.Saving }},
	{"total-saving", func(p *Pair) *Float { return p.TotalSaving }},
	{"backward-saving", func(p *Pair) *Float { return p.BackwardSaving }},
	{"kept", func(p *Pair) *Float { return p.KeptShare }},
	{"overhead", func(p *Pair) *Float { return p.Overhead }},
	{"loss-difference", func(p *Pair) *Float { return p.RelativeLoss }},
	{"gradient-difference", func(p *Pair) *Float { return p.RelativeGradient }},
}

const sameBits = "same-bits"

// ParseExpectations reads a list such as saving>=30%,overhead<=0.3,same-bits.
func ParseExpectations(text string) ([]Expectation, error) {
	var list []Expectation
	for part := range strings.SplitSeq(text, ",") {
		part = strings.ReplaceAll(strings.TrimSpace(part), " ", "")
		if part == sameBits {
			list = append(list, Expectation{What: part, name: part})
			continue
		}
		e, err := parseExpectation(part)
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	return list, nil
}

func parseExpectation(part string) (Expectation, error) {
	bad := fmt.Errorf("%q: want bounds such as saving>=30%%, overhead<=30%%, %s; figures: %s", part, sameBits, strings.Join(expectedNames(), ", "))
	for _, op := range []string{">=", "<=", ">", "<"} {
		name, number, ok := strings.Cut(part, op)
		if !ok {
			continue
		}
		number, percent := strings.CutSuffix(number, "%")
		bound, err := strconv.ParseFloat(number, 64)
		if err != nil || math.IsNaN(bound) || math.IsInf(bound, 0) {
			return Expectation{}, bad
		}
		if percent {
			bound /= 100
		}
		for _, x := range expected {
			if x.name == name {
				return Expectation{What: part, name: name, op: op, bound: bound}, nil
			}
		}
		return Expectation{}, bad
	}
	return Expectation{}, bad
}

func expectedNames() []string {
	var names []string
	for _, x := range expected {
		names = append(names, x.name)
	}
	return names
}

// Of says whether a pair meets it: what was not measured does not.
func (e *Expectation) Of(p *Pair) Met {
	m := Met{What: e.What}
	if e.name == sameBits {
		m.Holds = p.BitIdentical != nil && *p.BitIdentical
		return m
	}
	for _, x := range expected {
		if x.name == e.name {
			m.Value = x.of(p)
		}
	}
	if m.Value == nil {
		return m
	}
	switch v := float64(*m.Value); e.op {
	case ">=":
		m.Holds = v >= e.bound
	case "<=":
		m.Holds = v <= e.bound
	case ">":
		m.Holds = v > e.bound
	case "<":
		m.Holds = v < e.bound
	}
	return m
}

// Because is why what was expected of the results does not hold, "" where it is of something
// else or nothing is known.
func (m *Met) Because(d *Difference) string {
	if m.What == sameBits || strings.HasPrefix(m.What, "loss-") || strings.HasPrefix(m.What, "gradient-") {
		return d.Because()
	}
	return ""
}

// Text says what was expected and what there is.
func (m *Met) Text() string {
	switch {
	case m.What == sameBits:
		return "expected the same bits, and they differ or were not compared"
	case m.Value == nil:
		return "expected " + m.What + ", which was not measured"
	}
	return fmt.Sprintf("expected %s, measured %s", m.What, units.Percent(float64(*m.Value)))
}

// Sentence is what a pair shows, for a reader in a hurry.
func (c *Compare) Sentence(i int) string {
	p, names := &c.Pairs[i], c.names()
	a, b := names[0], names[i+1]
	m := c.Models[i+1]
	if m.Error != "" {
		return fmt.Sprintf("%s did not run: %s", b, clean(string(m.Error)))
	}
	var parts []string
	if p.Saving != nil && *p.Saving == 0 {
		parts = append(parts, fmt.Sprintf("takes as much live memory as %s (%s)", a, BytesOr(m.Memory.LivePeakBytes)))
	} else if p.Saving != nil {
		share, word := float64(*p.Saving), "less"
		if share < 0 {
			share, word = -share, "more"
		}
		parts = append(parts, fmt.Sprintf("takes %s %s live memory than %s (%s, not %s)", units.Percent(share), word, a,
			BytesOr(m.Memory.LivePeakBytes), BytesOr(c.Models[0].Memory.LivePeakBytes)))
	}
	if p.Overhead != nil {
		share, word := float64(*p.Overhead), "more"
		if share < 0 {
			share, word = -share, "less"
		}
		parts = append(parts, fmt.Sprintf("%s %s time", units.Percent(share), word))
	}
	line := cmp.Or(strings.Join(parts, " and "), "ran")
	switch {
	case p.BitIdentical != nil && *p.BitIdentical:
		line += "; results have the same bits"
	case p.RelativeGradient != nil:
		line += fmt.Sprintf("; results differ by %.2g of the largest", float64(*p.RelativeGradient)) + p.Because()
	case p.RelativeLoss != nil:
		line += "; losses differ by " + units.Percent(float64(*p.RelativeLoss)) + p.Because()
	}
	return b + " " + line + "."
}
