package traits

import (
	"slices"
	"strings"
)

// An Equation is that of an Einsum: a letter for each axis of each operand and of
// the result, and '.' for the axes that an ellipsis stands for.
type Equation struct {
	Terms  []string
	Result string
}

// longestEquation bounds the letters of an equation.
const longestEquation = 4096

// ParseEquation reads an equation. One that names no result has the ellipsis, if
// there is one, and then the letters that occur once, sorted. False: it is none.
func ParseEquation(text string) (Equation, bool) {
	short := strings.ReplaceAll(strings.ReplaceAll(text, " ", ""), "...", ".")
	left, result, explicit := strings.Cut(short, "->")
	e := Equation{strings.Split(left, ","), result}
	for _, term := range append(slices.Clip(e.Terms), result) {
		if strings.Count(term, ".") > 1 || strings.ContainsFunc(term, func(r rune) bool { return r != '.' && !letter(r) }) {
			return e, false
		}
	}
	if !explicit {
		e.Result = implicitResult(left)
	}
	return e, len(short) <= longestEquation
}

func implicitResult(left string) string {
	var once []rune
	for _, r := range left {
		if letter(r) && strings.Count(left, string(r)) == 1 {
			once = append(once, r)
		}
	}
	slices.Sort(once)
	if strings.Contains(left, ".") {
		return "." + string(once)
	}
	return string(once)
}

func letter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
