package onnx

// Dimensions as text: 7, batch, 2*batch*seq-1, ? where nothing is known.

import (
	"strconv"
	"strings"
)

// String writes the dimension as it stands in files and text graphs: 12,
// batch*seq, seq-1, or ? where it is unknown.
func (d Dim) String() string {
	if !d.known {
		return "?"
	}
	if d.sym == "" {
		return strconv.FormatInt(d.n, 10)
	}
	var b strings.Builder
	for mono := range strings.SplitSeq(d.sym, monoSep) {
		coef, atoms, _ := strings.Cut(mono, atomSep)
		if b.Len() > 0 && coef[0] != '-' {
			b.WriteByte('+')
		}
		parts := strings.ReplaceAll(atoms, atomSep, "*")
		switch {
		case parts == "":
			b.WriteString(coef)
		case coef == "1":
			b.WriteString(parts)
		case coef == "-1":
			b.WriteString("-" + parts)
		default:
			b.WriteString(coef + "*" + parts)
		}
	}
	return b.String()
}

// ParseDim reads a dim_param: a symbol, or a polynomial as String and the
// exporters write it (2*s0, s0 + 1, batch*seq-1). What it cannot read as a
// polynomial is one symbol of that name.
func ParseDim(text string) Dim {
	text = strings.TrimSpace(text)
	if text == "" || text == "?" {
		return Dim{}
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return Static(n)
	}
	if !strings.ContainsAny(text, "*+") && !strings.Contains(text, "-") {
		return Symbol(text)
	}
	if strings.ContainsAny(text, "()/\"' \t") && strings.ContainsAny(text, "()/\"'") {
		return Symbol(text)
	}
	return parsePolynomial(text)
}

func parsePolynomial(text string) Dim {
	sum := Static(0)
	rest := strings.ReplaceAll(text, " ", "")
	for first := true; rest != ""; first = false {
		sign := int64(1)
		switch {
		case rest[0] == '-':
			sign, rest = -1, rest[1:]
		case rest[0] == '+':
			rest = rest[1:]
		case !first:
			return Symbol(text)
		}
		end := strings.IndexAny(rest, "+-")
		if end < 0 {
			end = len(rest)
		}
		term := Static(sign)
		for f := range strings.SplitSeq(rest[:end], "*") {
			if n, err := strconv.ParseInt(f, 10, 64); err == nil {
				term = term.Mul(Static(n))
			} else if f == "" {
				return Symbol(text)
			} else {
				term = term.Mul(Symbol(f))
			}
		}
		sum, rest = sum.Add(term), rest[end:]
	}
	return sum
}
