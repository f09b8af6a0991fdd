package analysis

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/planner"
)

// sketches are architectures with the number of layers that a person counts.
var sketches = []struct {
	name   string
	layers int
	make   func(s *sketch) string
}{
	{"mlp", 7, func(s *sketch) string {
		x := repeat(6, s.in("x", "float32[2,8]"), func(x string) string { return s.op("Relu", s.dense(x)) })
		return s.dense(x)
	}},
	{"pre-norm", 6, func(s *sketch) string {
		return s.dense(s.norm(repeat(6, s.embed("ids"), func(x string) string { return s.preNorm(x, "") })))
	}},
	{"post-norm", 5, func(s *sketch) string {
		return s.dense(repeat(5, s.norm(s.embed("ids")), s.postNorm))
	}},
	{"post-norm on given values", 4, func(s *sketch) string {
		return repeat(4, s.in("x", "float32[2,5,8]"), s.postNorm)
	}},
	{"two layers", 2, func(s *sketch) string {
		return s.dense(repeat(2, s.embed("ids"), func(x string) string { return s.preNorm(x, "") }))
	}},
	{"parallel attention and mlp", 4, func(s *sketch) string {
		return s.dense(repeat(4, s.embed("ids"), func(x string) string {
			n := s.norm(x)
			return s.op("Add", s.op("Add", x, s.attention(n, n, "")), s.mlp(s.norm(x)))
		}))
	}},
	{"shared weights", 4, func(s *sketch) string {
		w, b := s.w(8, 8), s.w(8)
		return repeat(4, s.embed("ids"), func(x string) string {
			y := s.op("Gelu", s.op("Add", s.op("MatMul", s.norm(x), w), b))
			return s.op("Add", x, s.op("Add", s.op("MatMul", y, w), b))
		})
	}},
	{"position bias of all layers", 5, func(s *sketch) string {
		bias := s.op("MatMul", s.in("positions", "float32[2,5,8]"), s.w(8, 5))
		return s.norm(repeat(5, s.embed("ids"), func(x string) string { return s.preNorm(x, bias) }))
	}},
	{"mask of a shape", 4, func(s *sketch) string {
		x := s.embed("ids")
		mask := s.op("Expand", s.in("seen", "float32[2,1,5]"), s.op("Gather", s.op("Shape", x), s.ints(0, 1, 1)))
		return repeat(4, x, func(x string) string { return s.preNorm(x, mask) })
	}},
	{"experts by top k", 3, func(s *sketch) string {
		return repeat(3, s.embed("ids"), func(x string) string {
			n := s.norm(x)
			x = s.op("Add", x, s.attention(n, n, ""))
			n = s.norm(x)
			best := s.op("ArgMax {axis=2}", s.op("MatMul", n, s.w(8, 2)))
			y := x
			for range 2 {
				chosen := s.op("Cast {to=1}", best)
				y = s.op("Add", y, s.op("Mul", chosen, s.mlp(n)))
			}
			return y
		})
	}},
	{"experts, a loss of their routers summed up", 4, func(s *sketch) string {
		sum := ""
		x := repeat(4, s.embed("ids"), func(x string) string {
			x = s.preNorm(x, "")
			n := s.norm(x)
			share := s.op("Softmax", s.op("MatMul", n, s.w(8, 2)))
			loss := s.op("ReduceMean {keepdims=0}", share)
			if sum != "" {
				loss = s.op("Add", sum, loss)
			}
			sum = loss
			return s.op("Add", x, s.op("Mul", s.op("ReduceMax", share, s.ints(2)), s.mlp(n)))
		})
		return s.op("Add", s.dense(s.norm(x)), sum)
	}},
	{"encoder and decoder, 4 and 4", 8, func(s *sketch) string {
		e := s.norm(repeat(4, s.embed("source"), func(x string) string { return s.preNorm(x, "") }))
		return s.dense(s.norm(repeat(4, s.embed("target"), func(x string) string { return s.decoder(x, e, "") })))
	}},
	{"encoder and decoder, 2 and 6, biases", 8, func(s *sketch) string {
		near := s.op("MatMul", s.in("near", "float32[2,5,8]"), s.w(8, 5))
		far := s.op("MatMul", s.in("far", "float32[2,5,8]"), s.w(8, 5))
		e := s.norm(repeat(2, s.embed("source"), func(x string) string { return s.preNorm(x, near) }))
		return s.dense(s.norm(repeat(6, s.embed("target"), func(x string) string { return s.decoder(x, e, far) })))
	}},
	{"encoder and decoder, 2 and 2", 4, func(s *sketch) string {
		e := s.norm(repeat(2, s.embed("source"), func(x string) string { return s.preNorm(x, "") }))
		return s.dense(s.norm(repeat(2, s.embed("target"), func(x string) string { return s.decoder(x, e, "") })))
	}},
	{"two towers", 7, func(s *sketch) string {
		text := s.dense(s.norm(repeat(3, s.embed("ids"), func(x string) string { return s.preNorm(x, "") })))
		other := s.dense(s.norm(repeat(4, s.embed("more"), func(x string) string { return s.preNorm(x, "") })))
		return s.op("MatMul", text, s.op("Transpose {perm=[0, 2, 1]}", other))
	}},
	{"residual blocks", 6, func(s *sketch) string {
		x := s.op("Relu", s.conv(s.images(), 3, 4))
		n := 4
		for stage := range 3 {
			for block := range 2 {
				in, short := n, x
				if stage > 0 && block == 0 {
					n *= 2
					short = s.conv(x, in, n)
				}
				y := s.conv(s.op("Relu", s.conv(x, in, n)), n, n)
				x = s.op("Relu", s.op("Add", y, short))
			}
		}
		return x
	}},
	{"skip connections, the innermost block whole", 13, func(s *sketch) string {
		double := func(x string, in int) string {
			return s.op("Relu", s.conv(s.op("Relu", s.conv(x, in, 4)), 4, 4))
		}
		x := double(s.images(), 3)
		var skips []string
		for range 4 {
			skips = append(skips, x)
			x = double(x, 4)
		}
		for k := range skips {
			x = double(s.op("Concat {axis=1}", x, skips[3-k]), 8)
		}
		return x
	}},
	{"dense block", 9, func(s *sketch) string {
		x := s.conv(s.images(), 3, 4)
		all, n := []string{x}, 4
		for range 8 {
			in := all[0]
			if len(all) > 1 {
				in = s.op("Concat {axis=1}", all...)
			}
			all = append(all, s.conv(s.op("Relu", in), n, 4))
			n += 4
		}
		return s.op("Concat {axis=1}", all...)
	}},
	{"three recurrent layers, unrolled", 3, func(s *sketch) string {
		return s.dense(repeat(3, s.embed("ids"), s.lstm))
	}},
	{"one recurrent layer, its 5 steps", 5, func(s *sketch) string {
		return s.dense(s.lstm(s.embed("ids")))
	}},
	{"three recurrent operators", 3, func(s *sketch) string {
		x := s.op("Transpose {perm=[1, 0, 2]}", s.embed("ids"))
		return s.dense(repeat(3, x, func(x string) string {
			return s.op("Squeeze", s.op("GRU {hidden_size=8}", x, s.w(1, 24, 8), s.w(1, 24, 8)), s.ints(1))
		}))
	}},
}

// TestLayersOfArchitectures: layers are found in every kind of network, in any
// order of the file, and what a boundary and the values named beside it do not
// carry does not cross it.
func TestLayersOfArchitectures(t *testing.T) {
	for _, c := range sketches {
		s := &sketch{}
		m := s.model(t, c.make(s))
		for seed := range 4 {
			if seed > 0 {
				shuffle(m.Graph, rand.New(rand.NewSource(int64(seed))))
			}
			if _, err := infer.Model(m, infer.Options{}); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			a, err := Analyze(m, Options{})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			p := a.Problem
			if p.LayerCount() != c.layers {
				t.Errorf("%s, order %d: %d layers, want %d: %v", c.name, seed, p.LayerCount(), c.layers, names(a, flat(p.Layers)))
			}
			a.checkBoundaries(t, c.name)
		}
	}
}

// shuffle puts the nodes in a random topological order.
func shuffle(g *onnx.Graph, r *rand.Rand) {
	done := map[*onnx.Node]bool{}
	var order []*onnx.Node
	for len(order) < len(g.Nodes) {
		var ready []*onnx.Node
		for _, n := range g.Nodes {
			ok := !done[n]
			for _, v := range n.Inputs {
				ok = ok && (v == nil || v.Producer == nil || done[v.Producer])
			}
			if ok {
				ready = append(ready, n)
			}
		}
		n := ready[r.Intn(len(ready))]
		done[n] = true
		order = append(order, n)
	}
	copy(g.Nodes, order)
}

func flat(cuts []planner.Cut) []int { return slices.Concat(cuts...) }

func names(a *Analysis, list []int) []string {
	var out []string
	for _, v := range list {
		out = append(out, a.Values[v].Name)
	}
	return out
}

// checkBoundaries: behind each boundary forward reads, of all that was computed
// before it, the boundary alone, what lies beside it, and what depends on no
// weight or on no data.
func (a *Analysis) checkBoundaries(t *testing.T, name string) {
	t.Helper()
	c := &cutFinder{a: a, aside: map[int]bool{}}
	c.findMain()
	free := map[int]bool{}
	for _, list := range [][]int{flat(a.Problem.Layers), a.Problem.Beside} {
		for _, v := range list {
			free[v] = true
		}
	}
	for _, v := range a.Problem.Beside {
		c.aside[v] = true
	}
	c.arrange()
	for _, v := range flat(a.Problem.Layers) {
		fewest := []int{len(a.Values)}
		for place := c.made[v]; place < c.last[v]; place++ {
			var crossing []int
			for u, made := range c.made {
				if made <= place && c.last[u] > place && !free[u] {
					crossing = append(crossing, u)
				}
			}
			if len(fewest) > len(crossing) || place == c.made[v] {
				fewest = crossing
			}
		}
		if len(fewest) > 0 {
			t.Errorf("%s: %v cross boundary %s", name, names(a, fewest), a.Values[v].Name)
		}
	}
}

// TestInitializersAsInputs: weights that a file lists among its inputs too.
func TestInitializersAsInputs(t *testing.T) {
	s := &sketch{}
	x := repeat(4, s.embed("ids"), func(x string) string { return s.preNorm(x, "") })
	m := s.model(t, x)
	m.Graph.Inputs = append(m.Graph.Inputs, m.Graph.Initializers...)
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	a, err := Analyze(m, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := a.Problem.LayerCount(); n != 4 {
		t.Errorf("%d layers, want 4", n)
	}
}

// BenchmarkLayers finds the layers of ever deeper stacks.
func BenchmarkLayers(b *testing.B) {
	for _, layers := range []int{12, 48, 192} {
		b.Run(fmt.Sprint(layers), func(b *testing.B) {
			s := &sketch{}
			x := repeat(layers, s.embed("ids"), func(x string) string { return s.preNorm(x, "") })
			m := s.model(&testing.T{}, x)
			if _, err := infer.Model(m, infer.Options{}); err != nil {
				b.Fatal(err)
			}
			a, err := Analyze(m, Options{})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				a.Problem.Cuts, a.Problem.Layers, a.Problem.Beside = nil, nil, nil
				a.findLayers()
			}
			if n := a.Problem.LayerCount(); n != layers {
				b.Fatalf("%d layers", n)
			}
		})
	}
}

// TestLayerNames: layers have the names of the modules that they are most alike;
// steps in one module are numbered; without modules the end of a layer names it.
func TestLayerNames(t *testing.T) {
	const layers = 4
	module := func(layer int, part string) string { return fmt.Sprintf("net.layers.%d.%s", layer, part) }
	for _, c := range []struct {
		name string
		of   func(layer, node int) string // the module of a layer's node, counted from its start
		want func(layer int) string
	}{
		{"layers", func(l, n int) string { return module(l, []string{"attn", "mlp"}[n%2]) }, func(l int) string { return fmt.Sprintf("net.layers.%d", l) }},
		{"parts of them", func(l, n int) string { return module(l/2, []string{"attn", "mlp"}[l%2]) },
			func(l int) string { return module(l/2, []string{"attn", "mlp"}[l%2]) }},
		{"some of the next", func(l, n int) string { return fmt.Sprintf("net.layers.%d", l+n/14) }, func(l int) string { return fmt.Sprintf("net.layers.%d", l) }},
		{"steps", func(int, int) string { return "net.cell" }, func(l int) string { return fmt.Sprintf("net.cell (%d)", l+1) }},
		{"nothing", func(int, int) string { return "" }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &sketch{}
			m := s.model(t, s.dense(repeat(layers, s.embed("ids"), func(x string) string { return s.preNorm(x, "") })))
			if _, err := infer.Model(m, infer.Options{}); err != nil {
				t.Fatal(err)
			}
			a, err := Analyze(m, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if a.Problem.LayerCount() != layers {
				t.Fatalf("%d layers", a.Problem.LayerCount())
			}
			at := make([]int, layers)
			for op, l := range a.Problem.LayerOf() {
				if l >= 0 && a.Problem.Ops[op].Forward {
					a.Nodes[op].SetModule(c.of(l, at[l]))
					at[l]++
				}
			}
			a.nameLayers()
			for l, name := range a.Problem.LayerNames {
				want := a.Problem.Values[a.Problem.LayerEnd(l)].Name
				if c.want != nil {
					want = c.want(l)
				}
				if name != want {
					t.Errorf("layer %d: %q, want %q", l, name, want)
				}
			}
		})
	}
}
