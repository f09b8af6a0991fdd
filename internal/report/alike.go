package report

// Buffers that are alike, in one row: of one size, category and operator, in layers
// that differ by a number.
//
//	768.0 KiB  model.layers.0.mlp.act_fn
//	768.0 KiB  model.layers.1.mlp.act_fn   ─▶   3 × 768.0 KiB  model.layers.0-2.mlp.act_fn
//	768.0 KiB  model.layers.2.mlp.act_fn

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
)

// alike are buffers of one row, in the order of their layers.
type alike struct {
	// before and after enclose the number of the layer.
	before, after string
	numbers       []int
	values        []LiveValue
}

// groups are the buffers at the peak, those that take most together first.
func (p *Peak) groups() []*alike {
	type key struct {
		bytes         int64
		category      Category
		op            string
		before, after string
		name          string // of a value in no numbered layer
	}
	at := map[key]*alike{}
	var list []*alike
	for _, v := range p.Live {
		before, n, after, ok := numbered(string(v.Layer))
		k := key{v.Bytes, v.Category, v.Op, before, after, ""}
		if !ok {
			k.name = v.Value
		}
		g := at[k]
		if g == nil {
			g = &alike{before: before, after: after}
			at[k] = g
			list = append(list, g)
		}
		if ok && !slices.Contains(g.numbers, n) {
			g.numbers = append(g.numbers, n)
		}
		g.values = append(g.values, v)
	}
	slices.SortStableFunc(list, func(a, b *alike) int { return cmp.Compare(b.sum(), a.sum()) })
	return list
}

// numbered takes the first number out of a layer's name that is a part of its own,
// as that in model.layers.11.mlp.
func numbered(layer string) (before string, n int, after string, ok bool) {
	const separators = "./_ ()"
	start := 0
	for i := 0; i <= len(layer); i++ {
		if i < len(layer) && !strings.ContainsRune(separators, rune(layer[i])) {
			continue
		}
		if n, err := strconv.Atoi(layer[start:i]); err == nil && n >= 0 {
			return layer[:start], n, layer[i:], true
		}
		start = i + 1
	}
	return layer, 0, "", false
}

// sum is the size of all, in bytes.
func (g *alike) sum() int64 { return int64(len(g.values)) * g.values[0].Bytes }

func (g *alike) size() string {
	size := units.Bytes(g.values[0].Bytes)
	if n := len(g.values); n > 1 {
		size = fmt.Sprintf("%d × %s", n, size)
	}
	return size
}

// name is that of the first value, with how many others there are.
func (g *alike) name() string {
	name := textOr(g.values[0].Value)
	if n := len(g.values) - 1; n > 0 {
		more := fmt.Sprintf(" and %d more", n)
		name = elide(name, maxCell-len(more)) + more
	}
	return name
}

// layers is the layer's name with all numbers: ranges, up to four of them.
func (g *alike) layers() string {
	if len(g.numbers) == 0 {
		return g.before
	}
	slices.Sort(g.numbers)
	var ranges []string
	for i := 0; i < len(g.numbers); {
		k := i
		for k+1 < len(g.numbers) && g.numbers[k+1] == g.numbers[k]+1 {
			k++
		}
		text := itoa(g.numbers[i])
		if k > i {
			text += "-" + itoa(g.numbers[k])
		}
		if len(ranges) == 4 {
			ranges = append(ranges, "…")
			break
		}
		ranges, i = append(ranges, text), k+1
	}
	return g.before + strings.Join(ranges, ",") + g.after
}

// fit shortens names to n letters. Paths that begin alike lose what they begin with,
// but for one part of it, as it does not tell them apart; what is still too long loses
// its middle.
//
//	model.layers.0.self_attn.q_proj   ─▶   …self_attn.q_proj
//	model.layers.0.self_attn.k_proj        …self_attn.k_proj
func fit(names []string, n int) []string {
	var long []string
	for _, name := range names {
		if len([]rune(name)) > n {
			long = append(long, name)
		}
	}
	cut := 0
	if len(long) > 1 {
		cut = commonParts(long)
	}
	out := make([]string, len(names))
	for i, name := range names {
		if len([]rune(name)) > n && cut > 0 {
			name = "…" + name[cut:]
		}
		out[i] = elide(name, n)
	}
	return out
}

// commonParts is where the last part begins of those with which all paths begin, in
// bytes; parts end in a point or a slash, and one that is a number goes with the part
// before it.
func commonParts(paths []string) int {
	first, begin := paths[0], 0 // of the part that is being read
	last := 0
	for i := range first {
		for _, p := range paths {
			if i >= len(p) || p[i] != first[i] {
				return last
			}
		}
		if first[i] == '.' || first[i] == '/' {
			if _, err := strconv.Atoi(first[begin:i]); err != nil {
				last = begin
			}
			begin = i + 1
		}
	}
	return last
}
