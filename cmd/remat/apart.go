package main

// Why two graphs are bound to give other numbers: a difference that is none of theirs
// is told from one that is a mistake.

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/pipeline"
	"github.com/onnx-remat/remat/onnx/traits"
	remat "github.com/onnx-remat/remat/runtime"
)

// A draw is what a step draws at random: which seeds its operators have, as copies that
// are computed again share theirs.
type draw struct {
	seeds map[string]bool
	parts bool // some are those of a micro-batch after the first
}

// drawOf looks at a session's graph, whose operators all have seeds.
func drawOf(s *remat.Session) draw {
	d := draw{seeds: map[string]bool{}}
	if s.Model == nil || s.Model.Graph == nil {
		return d
	}
	for _, n := range traits.Drawing(s.Model.Graph) {
		a := n.Attr("seed")
		d.seeds[fmt.Sprintf("%s %d %v", n.OpType(), a.GetI(), a.GetF())] = true
	}
	d.parts = pipeline.DrawsApart(s.Model.Graph)
	return d
}

// whyApart lists why the second graph, of which it is said, is bound to give other numbers
// than the first; empty where nothing is known.
func whyApart(a, b *subject) (why []string) {
	switch {
	case maps.Equal(a.draw.seeds, b.draw.seeds) && (len(b.draw.seeds) == 0 || b.parts < 2):
	case len(b.draw.seeds) == 0:
		why = append(why, "it draws no random numbers")
	case len(a.draw.seeds) == 0:
		why = append(why, "it draws random numbers")
	case b.parts > 1 || b.draw.parts && !a.draw.parts:
		why = append(why, "each of its micro-batches draws random numbers of its own")
	case a.draw.parts && !b.draw.parts:
		why = append(why, "each of the other's micro-batches draws random numbers of its own")
	default:
		why = append(why, "its operators draw other random numbers, by seeds of their own")
	}
	if a.run.Precision != b.run.Precision {
		why = append(why, computesIn(string(b.run.Precision)))
	}
	if only := onlyIn(b.roles.New, a.roles.New); only != "" && len(a.roles.New) > 0 && b.parts < 2 { // else sums of the parts' gradients
		why = append(why, fmt.Sprintf("it updates %q too, which the other does not have", only))
	}
	if only := onlyIn(a.roles.New, b.roles.New); only != "" && len(b.roles.New) > 0 {
		why = append(why, fmt.Sprintf("the other updates %q too, which it does not have", only))
	}
	switch n := len(b.otherwise); {
	case n == 1:
		why = append(why, fmt.Sprintf("it begins with another value of %q", b.otherwise[0]))
	case n > 1:
		why = append(why, fmt.Sprintf("it begins with other values of %d inputs, such as %q", n, b.otherwise[0]))
	}
	return why
}

// computesIn says what a precision computes in, by the text of it; "" is float32.
func computesIn(precision string) string {
	if _, waits, stash := strings.Cut(precision, "; "); stash && strings.HasPrefix(precision, "float32") {
		return waits
	}
	is, _, _ := strings.Cut(precision, ":")
	is, _, _ = strings.Cut(is, " by the provider")
	return "it computes in " + cmp.Or(is, "float32")
}

// onlyIn is the first name that one map has and the other lacks, "" for none.
func onlyIn(has, lacks map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if _, ok := lacks[name]; !ok {
			return name
		}
	}
	return ""
}

// beginBeside notes what a graph draws, and which of the inputs with gradients or next values
// begin with other values than the first graph's.
func (s *subject) beginBeside(first *subject) error {
	if s.session == nil || s.run.Rehearsed {
		return nil
	}
	s.draw = drawOf(s.session)
	if s == first {
		return nil
	}
	names := slices.Concat(slices.Collect(maps.Keys(first.roles.Grad)), slices.Collect(maps.Keys(first.roles.New)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		if _, _, err := s.session.ShapeOf(name); err != nil {
			continue // it has none of that name
		}
		err := first.session.View(name, func(x remat.Tensor) error {
			return s.session.View(name, func(y remat.Tensor) error {
				if x.Type == y.Type && slices.Equal(x.Shape, y.Shape) && !bytes.Equal(x.Data, y.Data) {
					s.otherwise = append(s.otherwise, name)
				}
				return nil
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}
