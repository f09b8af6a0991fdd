package traits

import (
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// attentionScratch: the scores, and the mask where it has to be made up: from
// truth values, or from the causal order. Source: measured on ONNX's node
// tests; half types are converted head by head, which is not modelled.
func attentionScratch(n *onnx.Node, _ int, k *Kernel) bool {
	q, okQ := dims(n.In(0))
	key, okK := dims(n.In(1))
	if !okQ || !okK || len(q) != len(key) || n.In(0).Type.DType != onnx.Float32 || n.In(6) != nil {
		return false
	}
	var batch, heads, rows, columns int64
	switch len(q) {
	case 3:
		batch, heads, rows, columns = q[0], n.Int("q_num_heads", 0), q[1], key[1]
	case 4:
		batch, heads, rows, columns = q[0], q[1], q[2], key[2]
	default:
		return false
	}
	if past := n.In(4); past != nil {
		p, ok := dims(past)
		if !ok || len(p) != 4 || n.Out(1) == nil || n.Out(2) == nil {
			return false
		}
		columns += p[2]
	}
	k.take(0, 1, 2, 3)
	k.borrow(batch * heads * rows * columns * floatBytes)
	causal := n.Int("is_causal", 0) != 0
	mask, ok := rows*columns, true
	if v := n.In(3); v != nil {
		var d []int64
		d, ok = dims(v)
		mask, causal = product(d), causal || v.Type.DType == onnx.Bool
	}
	if causal {
		k.borrow(mask * floatBytes)
	}
	return ok
}

// einsumScratch follows ONNX Runtime's pairwise evaluation: operands are
// transposed to the order in which labels first occur, labels that only one of
// a pair has and nobody needs later are summed away, the rest is one batched
// product [both, left, summed] × [both, summed, right], whose result is copied
// into the output. Source: EinsumTypedComputeProcessor. Weakness: no diagonals.
func einsumScratch(n *onnx.Node, _ int, k *Kernel) bool { return evaluateEinsum(n, k, nil) }

// evaluateEinsum is einsumScratch with sums that borrow.
func evaluateEinsum(n *onnx.Node, k *Kernel, sum func(dims, axes []int64)) bool {
	shapes, ranks := make([][]int64, len(n.Inputs)), make([]int, len(n.Inputs))
	for i := range n.Inputs {
		d, ok := dims(n.In(i))
		if !ok {
			return false
		}
		shapes[i], ranks[i] = d, len(d)
	}
	eq, ok := parseEquation(n.Str("equation", ""), ranks)
	if !ok {
		return false
	}
	e := einsum{equation: eq, k: k, size: elementBytes(n.In(0)), sum: sum}
	operands := make([]operand, len(shapes))
	for i, d := range shapes {
		operands[i] = e.homogenize(i, d)
	}
	e.run(operands)
	return true
}

// An equation has its labels numbered by first occurrence, after the axes that an
// ellipsis stands for.
type equation struct {
	terms  [][]int
	output []int
	// last is the input after which a label is summed away, None if the
	// output has it.
	last []int
}

// parseEquation reads "ij,jk->ik", for operands of these ranks; false for what is not
// modelled.
func parseEquation(text string, ranks []int) (equation, bool) {
	var eq equation
	parsed, ok := ParseEquation(text)
	if !ok || len(parsed.Terms) != len(ranks) {
		return eq, false
	}
	index, ellipsis := map[rune]int{}, ""
	for i, t := range parsed.Terms {
		if !strings.Contains(t, ".") {
			continue
		}
		for len(index) <= ranks[i]-len(t) {
			label := '0' + rune(len(index)) // no letter
			index[label] = len(index)
			eq.last = append(eq.last, None)
			ellipsis += string(label)
		}
	}
	if ellipsis != "" && !strings.Contains(parsed.Result, ".") {
		return eq, false
	}
	for i, t := range parsed.Terms {
		t = strings.Replace(t, ".", ellipsis, 1)
		if len(t) != ranks[i] {
			return eq, false
		}
		var term []int
		for at, r := range t {
			if strings.ContainsRune(t[:at], r) {
				return eq, false
			}
			if _, ok := index[r]; !ok {
				index[r] = len(index)
				eq.last = append(eq.last, i)
			}
			term = append(term, index[r])
			eq.last[index[r]] = i
		}
		eq.terms = append(eq.terms, term)
	}
	for _, r := range strings.Replace(parsed.Result, ".", ellipsis, 1) {
		i, known := index[r]
		if !known {
			return eq, false
		}
		eq.output = append(eq.output, i)
		eq.last[i] = None
	}
	return eq, true
}
