package grad

import "slices"

// zeroRules are the operators that have float inputs and pass no gradient to
// them, each with the reason. Operators of integers, booleans and strings need
// no row: what flows into them is not a float.
var zeroRules = slices.Concat(
	none("its output is a boolean or an integer", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
		"IsNaN", "IsInf", "Shape", "Size", "NonZero", "ArgMax", "ArgMin", "NonMaxSuppression"),
	none("its output is constant almost everywhere", "Floor", "Ceil", "Round", "Sign"),
	none("only the shape of its input matters", "EyeLike", "RandomNormalLike", "RandomUniformLike"),
	none("its output is drawn at random", "Bernoulli", "Multinomial"),
	none("it only counts", "Range"),
	none("its float inputs are the two constants that it writes", "OneHot"),
)

// none makes a row of the standard domain for each operator that no gradient
// passes.
func none(why string, ops ...string) []Rule {
	var out []Rule
	for _, op := range ops {
		out = append(out, Rule{Op: op, Since: 1, Doc: "no gradient", None: why})
	}
	return out
}
