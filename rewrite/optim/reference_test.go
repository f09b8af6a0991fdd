package optim

// The same training in float64, written from PyTorch's documentation of AdamW,
// SGD and clip_grad_norm_ and from the paper on Lion, on the graph of toyModel.

import "math"

// reference holds the parameters P [3,4] and b [4] and their state.
type reference struct {
	o      Options
	cols   int // of P as a matrix, for the optimizers that take it for one
	params [][]float64
	m, v   [][]float64
	rows   []float64 // of P's second moment, and its columns in v[0]
	size   float64   // of P's last update
	acc    [][]float64
	step   int
	norm   float64 // of the mean gradients of the update before
}

func newReference(o Options, params ...[]float64) *reference {
	r := &reference{o: o, cols: 4, params: params}
	for _, p := range params {
		r.m = append(r.m, make([]float64, len(p)))
		r.v = append(r.v, make([]float64, len(p)))
		r.acc = append(r.acc, make([]float64, len(p)))
	}
	return r
}

// gradients of half the sum of (x·P+b)², x [5,3].
func (r *reference) gradients(x []float64) [][]float64 {
	p, b := r.params[0], r.params[1]
	gp, gb := make([]float64, 12), make([]float64, 4)
	for i := range 5 {
		for j := range 4 {
			y := b[j]
			for k := range 3 {
				y += x[i*3+k] * p[k*4+j]
			}
			gb[j] += y
			for k := range 3 {
				gp[k*4+j] += x[i*3+k] * y
			}
		}
	}
	return [][]float64{gp, gb}
}

// train makes one step on x.
func (r *reference) train(x []float64) {
	r.step++
	const lr = testRate
	grads := r.gradients(x)
	n := int(max(r.o.Accumulate, 1))
	for i := range grads {
		for j := range grads[i] {
			r.acc[i][j] += grads[i][j] / float64(n)
		}
	}
	if r.step%n != 0 {
		return
	}
	scales := r.scales()
	for i, p := range r.params {
		decay := r.o.WeightDecay
		if r.o.NoDecay != nil && i == 1 { // the vector
			decay = 0
		}
		if whole := r.whole(); whole != nil {
			for j := range p {
				r.acc[i][j] *= scales[i]
			}
			whole(i, r.acc[i], lr, decay, float64(r.step/n))
			clear(r.acc[i])
			continue
		}
		for j := range p {
			g := r.acc[i][j] * scales[i]
			r.acc[i][j] = 0
			switch r.o.Kind {
			case AdamW, AdamW8bit: // of so few numbers none is coded
				r.adamw(i, j, g, lr, decay, float64(r.step/n))
			case Lion:
				r.lion(i, j, g, lr, decay)
			default:
				g += decay * p[j]
				r.m[i][j] = r.o.Momentum*r.m[i][j] + g
				p[j] -= lr * r.m[i][j]
			}
		}
	}
}

// whole is the update of a parameter of an optimizer that is not elementwise.
func (r *reference) whole() func(i int, g []float64, lr, decay, t float64) {
	switch r.o.Kind {
	case Adafactor:
		return r.adafactor
	case ApolloMini:
		return r.apollo
	case Muon:
		return r.muon
	}
	return nil
}

// scales are what clipping multiplies the gradients with, one for each parameter.
func (r *reference) scales() []float64 {
	norms := make([]float64, len(r.acc))
	all := 0.0
	for i, g := range r.acc {
		for _, v := range g {
			norms[i] += v * v
		}
		all += norms[i]
		norms[i] = math.Sqrt(norms[i])
	}
	before := r.norm
	r.norm = math.Sqrt(all)
	for i := range norms {
		switch r.o.ClipBy {
		case ClipParameter:
		case ClipPrevious:
			norms[i] = before
		default:
			norms[i] = r.norm
		}
		if r.o.ClipNorm > 0 {
			norms[i] = math.Min(1, r.o.ClipNorm/(norms[i]+1e-6))
		} else {
			norms[i] = 1
		}
	}
	return norms
}

func (r *reference) adamw(i, j int, g, lr, decay, t float64) {
	p, m, v := &r.params[i][j], &r.m[i][j], &r.v[i][j]
	*p *= 1 - lr*decay
	*m = r.o.Beta1**m + (1-r.o.Beta1)*g
	*v = r.o.Beta2**v + (1-r.o.Beta2)*g*g
	rate := lr / (1 - math.Pow(r.o.Beta1, t))
	*p -= rate * *m / (math.Sqrt(*v)/math.Sqrt(1-math.Pow(r.o.Beta2, t)) + r.o.Eps)
}

// lion is algorithm 2 of Chen et al. 2023.
func (r *reference) lion(i, j int, g, lr, decay float64) {
	p, m := &r.params[i][j], &r.m[i][j]
	c := r.o.Beta1**m + (1-r.o.Beta1)*g
	sign := 0.0
	if c != 0 {
		sign = math.Copysign(1, c)
	}
	*p -= lr * (sign + decay**p)
	*m = r.o.Beta2**m + (1-r.o.Beta2)*g
}

func sumSquares(x []float64) float64 {
	s := 0.0
	for _, v := range x {
		s += v * v
	}
	return s
}

// adafactor is algorithm 4 of Shazeer and Stern 2018 for P, whose state is sums of rows
// and columns there, and algorithm 5 for b; the share of the old moment is algorithm 6's.
func (r *reference) adafactor(i int, g []float64, lr, decay, t float64) {
	beta := 1 - math.Pow(t, -0.8)
	u, v := make([]float64, len(g)), r.v[i]
	if i == 1 {
		for j := range g {
			v[j] = beta*v[j] + (1-beta)*(g[j]*g[j]+1e-30)
			u[j] = g[j] / math.Sqrt(v[j])
		}
	} else {
		n := r.cols
		row, col, all := make([]float64, len(g)/n), make([]float64, n), 0.0
		for j := range g {
			row[j/n] += g[j]*g[j] + 1e-30
			col[j%n] += g[j]*g[j] + 1e-30
		}
		if r.rows == nil {
			r.rows = make([]float64, len(row))
		}
		for k := range row {
			r.rows[k] = beta*r.rows[k] + (1-beta)*row[k]
			all += r.rows[k]
		}
		for k := range col {
			v[k] = beta*v[k] + (1-beta)*col[k]
		}
		for j := range g {
			u[j] = g[j] / math.Sqrt(r.rows[j/n]*v[j%n]/all)
		}
	}
	p, rate := r.params[i], lr/math.Max(1, math.Sqrt(sumSquares(u)/float64(len(u))))
	if r.o.RelativeStep > 0 {
		rate *= math.Max(r.o.RelativeStep, math.Sqrt(sumSquares(p)/float64(len(p))))
	}
	for j := range p {
		p[j] = p[j]*(1-lr*decay) - rate*u[j]
	}
}

// signAt is the sign at a place of a draw, as random.go says it.
func signAt(i, draw int64) float64 {
	const p = 2147483647
	x := (48271*(i+1) + 69621*(draw+1)%p) % p
	for _, k := range []int64{1234577, 777767777, 1618033987} {
		x = x * (x + k) % p
	}
	return float64(1 - 2*(x%2))
}

// apollo is algorithm 1 of Zhu et al. 2024 of rank 1 for P, whose shorter axis is projected
// away, and AdamW for b.
func (r *reference) apollo(i int, g []float64, lr, decay, t float64) {
	p := r.params[i]
	if i == 1 {
		for j := range g {
			r.adamw(i, j, g[j], lr, decay, t)
		}
		return
	}
	n := max(r.cols, len(g)/r.cols)
	proj, quot := make([]float64, n), make([]float64, n)
	for j := range g {
		at, gone := j%r.cols, j/r.cols
		if r.cols < n {
			at, gone = gone, at
		}
		proj[at] += g[j] * signAt(int64(gone), (int64(t)-1)/200)
	}
	c1, c2 := 1-math.Pow(r.o.Beta1, t), 1-math.Pow(r.o.Beta2, t)
	for k := range proj {
		m, v := &r.m[0][k], &r.v[0][k]
		*m = r.o.Beta1**m + (1-r.o.Beta1)*proj[k]
		*v = r.o.Beta2**v + (1-r.o.Beta2)*proj[k]*proj[k]
		quot[k] = *m / (math.Sqrt(*v) + r.o.Eps*math.Sqrt(c2))
	}
	length := math.Sqrt(sumSquares(g))
	size := math.Sqrt(sumSquares(quot)) / (math.Sqrt(sumSquares(proj)) + 1e-8) * length
	if r.size > 0 {
		size = math.Min(size, 1.01*r.size)
	}
	r.size = size
	for j := range p {
		p[j] = p[j]*(1-lr*decay) - lr*math.Sqrt(c2)/c1*math.Sqrt(r.o.Scale)*size*g[j]/length
	}
}

// muon is Jordan et al.'s for P, and AdamW for b. P is taken as it is, wide or tall: the
// product from either side is the same.
func (r *reference) muon(i int, g []float64, lr, decay, t float64) {
	p := r.params[i]
	if i == 1 {
		for j := range g {
			r.adamw(i, j, g[j], lr, decay, t)
		}
		return
	}
	x := make([]float64, len(g))
	for j := range g {
		m := &r.m[0][j]
		*m = r.o.Momentum**m + (1-r.o.Momentum)*g[j]
		x[j] = (1-r.o.Momentum)*g[j] + r.o.Momentum**m
	}
	length := math.Sqrt(sumSquares(x))
	for j := range x {
		x[j] /= length
	}
	rows := len(x) / r.cols
	for range 5 {
		a := product(x, transposed(x, r.cols), rows, r.cols)
		aa := product(a, a, rows, rows)
		b := make([]float64, len(a))
		for k := range a {
			b[k] = -4.7750*a[k] + 2.0315*aa[k]
		}
		bx := product(b, x, rows, rows)
		for k := range x {
			x[k] = 3.4445*x[k] + bx[k]
		}
	}
	for j := range p {
		p[j] = p[j]*(1-lr*decay) - lr*0.2*math.Sqrt(float64(max(rows, r.cols)))*x[j]
	}
}

// product is that of a [rows, inner] and b.
func product(a, b []float64, rows, inner int) []float64 {
	n := len(b) / inner
	c := make([]float64, rows*n)
	for i := range rows {
		for k := range inner {
			for j := range n {
				c[i*n+j] += a[i*inner+k] * b[k*n+j]
			}
		}
	}
	return c
}

// transposed is that of a matrix of so many columns.
func transposed(a []float64, columns int) []float64 {
	t, rows := make([]float64, len(a)), len(a)/columns
	for i := range a {
		t[i%columns*rows+i/columns] = a[i]
	}
	return t
}
