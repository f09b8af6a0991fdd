// Package weights makes a parameter's first values from a seed: the same bytes
// on every machine, whatever the number of cores, and any part of a tensor
// without the parts before it.
//
//	(seed, name) ─sha256─▶ key ──block number──▶ splitmix64 ──ziggurat──▶ float32
//
// A block is 65,536 elements with a generator of its own. The normal numbers
// come from the ziggurat of Marsaglia and Tsang ("The Ziggurat Method for
// Generating Random Variables", 2000) with 256 layers: one 64-bit draw, one
// product and one comparison in 99 % of the cases. No sum stands beside a
// product, so no compiler can fuse them and change the last bit; the tables are
// rounded to float32 for the same reason.
//
// Weakness: the rare tail goes through math.Log, whose last bit may differ
// between architectures; it is rounded to float32 before it is used.
package weights

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
)

// BlockElements is how many elements one generator makes.
const BlockElements = 1 << 16

// layers of the ziggurat, the abscissa where its tail begins, and the area of
// each layer under exp(-x*x/2).
const (
	zigLayers = 256
	zigTail   = 3.6541528853610088
	zigArea   = 0.00492867323399
)

// zigX are the layers' right edges from the outermost in, zigY the density there.
var zigX, zigY = zigTables()

func zigTables() (x, y [zigLayers + 1]float64) {
	density := func(v float64) float64 { return math.Exp(-v * v / 2) }
	x[0], x[1] = zigArea/density(zigTail), zigTail
	for i := 2; i < zigLayers; i++ {
		above := zigArea/x[i-1] + density(x[i-1])
		x[i] = math.Sqrt(-2 * math.Log(above))
	}
	for i := range x {
		x[i] = float64(float32(x[i]))
		y[i] = float64(float32(density(x[i])))
	}
	return x, y
}

// source is splitmix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
// Number Generators", 2014).
type source uint64

func (s *source) next() uint64 {
	*s += 0x9e3779b97f4a7c15
	z := uint64(*s)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// unit is uniform in (0,1].
func (s *source) unit() float64 { return float64(s.next()>>11+1) / (1 << 53) }

// between is uniform in (-1,1].
func (s *source) between() float64 { return 2*s.unit() - 1 }

// normal is distributed with mean 0 and variance 1.
func (s *source) normal() float64 {
	for {
		r := s.next()
		i := r & (zigLayers - 1)
		x := float64(int64(r)>>11) / (1 << 52) * zigX[i]
		if math.Abs(x) < zigX[i+1] {
			return x
		}
		if i == 0 {
			return math.Copysign(s.tail(), x)
		}
		height := float64(s.unit() * (zigY[i+1] - zigY[i]))
		if zigY[i]+height < math.Exp(-x*x/2) {
			return x
		}
	}
}

// tail draws from beyond zigTail by Marsaglia's method of 1964.
func (s *source) tail() float64 {
	for {
		a := float64(float32(-math.Log(s.unit()) / zigTail))
		b := -math.Log(s.unit())
		if 2*b > a*a {
			return zigTail + a
		}
	}
}

// blockSource is the generator of one block of a tensor.
func blockSource(seed uint64, name string, block int64) source {
	key := binary.LittleEndian.AppendUint64(nil, seed)
	sum := sha256.Sum256(append(key, name...))
	s := source(binary.LittleEndian.Uint64(sum[:]) ^ uint64(block)*0xd1342543de82ef95)
	return source(s.next())
}

// An Init says how a parameter's first values are made.
type Init struct {
	// Kind is "normal" (mean 0, standard deviation Scale), "uniform" (between -Scale
	// and Scale) or "constant" (Scale everywhere).
	Kind  string  `json:"init"`
	Scale float64 `json:"scale"`
}

// Normal is the Init of that standard deviation.
func Normal(std float64) Init { return Init{"normal", std} }

// Uniform is the Init of numbers between -bound and bound.
func Uniform(bound float64) Init { return Init{"uniform", bound} }

// Constant is the Init of one value everywhere.
func Constant(v float64) Init { return Init{"constant", v} }

// Known reports an Init that Fill can follow.
func (n Init) Known() bool {
	return n.Kind == "normal" || n.Kind == "uniform" || n.Kind == "constant"
}

// Fill writes float32 values, little-endian, of the parameter of that name.
// First is the index of the first element, a multiple of 65,536. The result
// depends on seed, name and first alone.
func (n Init) Fill(dst []byte, seed uint64, name string, first int64) {
	if n.Kind == "constant" {
		bits := math.Float32bits(float32(n.Scale))
		for i := 0; i+4 <= len(dst); i += 4 {
			binary.LittleEndian.PutUint32(dst[i:], bits)
		}
		return
	}
	draw := (*source).normal
	if n.Kind == "uniform" {
		draw = (*source).between
	}
	for block := first / BlockElements; len(dst) > 0; block++ {
		s := blockSource(seed, name, block)
		size := min(len(dst), 4*BlockElements)
		for i := 0; i+4 <= size; i += 4 {
			v := float32(draw(&s) * n.Scale)
			binary.LittleEndian.PutUint32(dst[i:], math.Float32bits(v))
		}
		dst = dst[size:]
	}
}
