package analysis

import (
	"hash/fnv"
	"maps"
	"slices"
	"sort"

	"github.com/onnx-remat/remat/onnx/traits"
)

// Repetition between cuts.
//
// What lies between two cuts is known by how often each type of operator occurs
// in it, as a sum of hashes, so any two stretches are compared at once:
//
//	cuts      0    1    2    3    4    5    6    7
//	          ├─e──┼─a──┼─m──┼─a──┼─m──┼─a──┼─m'─┤─ head
//	from 1:        └── a+m ──┴── a+m ──┘
//
// From every cut on every length is tried. Where more of the graph repeats so,
// stacks are sought by their products alone: layers may differ in other
// operators, as a first one that a constant folded into.

// pieces are running totals up to each cut: of operators, views left out, and
// of products, each as a number and as a sum of hashes of types.
type pieces struct {
	ops, prods     []int
	opSum, prodSum []uint64
	// atOps and atProds find the first cut with so many.
	atOps, atProds map[int]int
	// productsOnly: other operators do not matter.
	productsOnly bool
}

// A run is a stack of layers: the cuts between them, and its products.
type run struct {
	at    []int
	cover int
}

func (r *run) count() int { return len(r.at) - 1 }

func cover(runs []run) int {
	n := 0
	for _, r := range runs {
		n += r.cover
	}
	return n
}

// measure takes the running totals of the cuts.
func (c *cutFinder) measure() *pieces {
	p := &pieces{atOps: map[int]int{}, atProds: map[int]int{}}
	ops, prods, opSum, prodSum, place := 0, 0, uint64(0), uint64(0), 0
	for k, cut := range c.cuts {
		for ; place <= cut.place; place++ {
			op := c.order[place]
			t, _ := traits.Of(c.a.Nodes[op])
			if t.Cost != traits.View {
				ops, opSum = ops+1, opSum+hashed(c.a.Problem.Ops[op].Type)
			}
			if t.Product() {
				prods, prodSum = prods+1, prodSum+hashed(string(rune(t.Cost)))
			}
		}
		p.ops, p.prods = append(p.ops, ops), append(p.prods, prods)
		p.opSum, p.prodSum = append(p.opSum, opSum), append(p.prodSum, prodSum)
		if _, ok := p.atOps[ops]; !ok {
			p.atOps[ops] = k
		}
		if _, ok := p.atProds[prods]; !ok {
			p.atProds[prods] = k
		}
	}
	return p
}

func hashed(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}

// products counts the products between two cuts.
func (p *pieces) products(from, to int) int { return p.prods[to] - p.prods[from] }

// alike reports whether the products between two cuts are those of a run's layer.
func (p *pieces) alike(from, to int, r run) bool {
	n := len(r.at) - 1
	return p.products(from, to) == p.products(r.at[n-1], r.at[n]) &&
		p.prodSum[to]-p.prodSum[from] == p.prodSum[r.at[n]]-p.prodSum[r.at[n-1]]
}

// total counts them all.
func (p *pieces) total() int { return p.prods[len(p.prods)-1] }

// perLength bounds the runs of one length of layers that are looked at, those
// that hold most, and tried the pairs of cuts looked at for all first runs.
const (
	perLength = 3
	tried     = 1_000_000
)

// runs finds the stacks of layers in forward order: one that holds a third of
// all products at least, and beside it those of layers not much smaller; nil
// for none. Of several sets, the one that holds most; longer layers must win
// one of the shorter.
func (p *pieces) runs() []run {
	first := p.longest(0, len(p.ops)-1, 1)
	sort.SliceStable(first, func(a, b int) bool { return first[a].cover > first[b].cover })
	var best []run
	for k, r := range first {
		if 3*r.cover < p.total() || k > 2 && k*len(p.ops)*len(p.ops) > tried {
			break
		}
		runs := p.beside(r)
		if best == nil || wins(runs, best) {
			best = runs
		}
	}
	return best
}

// beside finds what repeats before and after a run, in layers of half its
// products at least.
func (p *pieces) beside(r run) []run {
	least := (r.cover/r.count() + 1) / 2
	runs := []run{r}
	var search func(from, to int)
	search = func(from, to int) {
		var best []run
		for _, r := range p.longest(from, to, least) {
			if one := []run{r}; best == nil || wins(one, best) {
				best = one
			}
		}
		for _, r := range best {
			runs = append(runs, r)
			search(from, r.at[0])
			search(r.at[r.count()], to)
		}
	}
	search(0, r.at[0])
	search(r.at[r.count()], len(p.ops)-1)
	sort.Slice(runs, func(a, b int) bool { return runs[a].at[0] < runs[b].at[0] })
	return runs
}

// layer is the number of products of the largest layer of some runs.
func layer(runs []run) int {
	n := 0
	for _, r := range runs {
		n = max(n, r.cover/r.count())
	}
	return n
}

// wins reports whether runs a are worth more than b: where they cover a layer
// more; else where fewer follow each other with nothing between, since that is
// mostly one stack cut wrongly; then where the layers are shorter.
func wins(a, b []run) bool {
	la, lb := layer(a), layer(b)
	if m := max(la, lb); cover(a) >= cover(b)+m || cover(b) >= cover(a)+m {
		return cover(a) > cover(b)
	}
	if x, y := abutting(a), abutting(b); x != y {
		return x < y
	}
	return la < lb || la == lb && cover(a) > cover(b)
}

// abutting counts the runs that begin where another ends.
func abutting(runs []run) int {
	n := 0
	for k := 1; k < len(runs); k++ {
		if runs[k].at[0] == runs[k-1].at[runs[k-1].count()] {
			n++
		}
	}
	return n
}

// longest finds, for each length of a layer in products from least on, the runs
// with most products between two cuts.
func (p *pieces) longest(from, to, least int) []run {
	best := map[int][]run{}
	for i := from; i < to; i++ {
		if p.ops[i+1] == p.ops[i] {
			continue // a view: a stack begins behind it
		}
		for j := i + 1; j <= to && p.products(i, j) <= p.products(j, to)+p.products(i, j)/2; j++ {
			n := p.products(i, j)
			if n < least || j > i+1 && p.ops[j] == p.ops[j-1] {
				continue
			}
			at := p.repeated(i, j, to)
			if len(at) < 3 {
				continue
			}
			r := run{at: at, cover: p.products(at[0], at[len(at)-1])}
			switch held := best[n]; {
			case len(held) == 0 || r.cover > held[0].cover:
				best[n] = append(held[:0], r)
			case r.cover == held[0].cover && len(held) < perLength && at[0] != held[len(held)-1].at[0]:
				best[n] = append(held, r)
			}
		}
	}
	var list []run
	for _, n := range slices.Sorted(maps.Keys(best)) {
		list = append(list, best[n]...)
	}
	return list
}

// repeated lists the cuts from i on between which the operators between cuts i
// and j occur again and again.
func (p *pieces) repeated(i, j, to int) []int {
	if p.productsOnly {
		return p.repeatedProducts(i, j, to)
	}
	at := []int{i, j}
	n, sum := p.ops[j]-p.ops[i], p.opSum[j]-p.opSum[i]
	for {
		k, ok := p.atOps[p.ops[j]+n]
		if !ok || k > to || p.opSum[k]-p.opSum[j] != sum {
			return at
		}
		at, j = append(at, k), k
	}
}

// repeatedProducts does so by products alone; boundaries are the last cuts
// before the next product.
func (p *pieces) repeatedProducts(i, j, to int) []int {
	if i > 0 && p.products(i, i+1) == 0 || p.products(j-1, j) == 0 || p.products(i, j) < 2 {
		return nil // one try for cuts between which no product lies; in a chain of products all repeat
	}
	at := []int{i, j}
	n, sum := p.prods[j]-p.prods[i], p.prodSum[j]-p.prodSum[i]
	for {
		k, ok := p.atProds[p.prods[j]+n]
		if !ok || k > to || p.prodSum[k]-p.prodSum[j] != sum {
			break
		}
		at, j = append(at, k), k
	}
	for k := 1; k < len(at)-1; k++ {
		for p.products(at[k], at[k]+1) == 0 {
			at[k]++
		}
	}
	if k := len(at) - 1; k >= 2 { // the last layer has no next product, but no more operators than others
		for at[k] < to && p.products(at[k], at[k]+1) == 0 && p.ops[at[k]+1]-p.ops[at[k-1]] <= p.ops[at[k-1]]-p.ops[at[k-2]] {
			at[k]++
		}
	}
	return at
}
