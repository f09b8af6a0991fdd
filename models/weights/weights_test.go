package weights

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"
)

// TestNormalIsNormal compares a million draws with the distribution function
// (Kolmogorov-Smirnov on a grid) and with the first four moments.
func TestNormalIsNormal(t *testing.T) {
	const n = 1 << 20
	s := blockSource(7, "w", 0)
	var m2, m3, m4, mean float64
	counts := make([]float64, 81)
	for range n {
		x := s.normal()
		mean += x / n
		m2 += x * x / n
		m3 += x * x * x / n
		m4 += x * x * x * x / n
		for i := range counts {
			if x < float64(i-40)/10 {
				counts[i]++
			}
		}
	}
	for name, c := range map[string][3]float64{"mean": {mean, 0, 1}, "second": {m2, 1, 2}, "third": {m3, 0, 15}, "fourth": {m4, 3, 96}} {
		if limit := 5 * math.Sqrt(c[2]/n); math.Abs(c[0]-c[1]) > limit {
			t.Errorf("%s moment %v, not within %v of %v", name, c[0], limit, c[1])
		}
	}
	for i, k := range counts {
		want := math.Erfc(-float64(i-40)/10/math.Sqrt2) / 2
		if d := math.Abs(k/n - want); d > 1.95/math.Sqrt(n) {
			t.Errorf("share below %v is %v, not %v", float64(i-40)/10, k/n, want)
		}
	}
}

func TestFillIsTheSameInParts(t *testing.T) {
	const n = 3*BlockElements + 17
	whole := make([]byte, 4*n)
	Normal(0.02).Fill(whole, 3, "a", 0)
	rest := make([]byte, 4*(n-2*BlockElements))
	Normal(0.02).Fill(rest, 3, "a", 2*BlockElements)
	if !bytes.Equal(whole[8*BlockElements:], rest) {
		t.Error("the later part of a tensor depends on where filling began")
	}
	other := make([]byte, 4*n)
	Normal(0.02).Fill(other, 3, "b", 0)
	if bytes.Equal(whole[:4096], other[:4096]) {
		t.Error("two names have the same values")
	}
}

// TestFillIsFixed holds the bytes themselves: models that were described only
// must get the same weights from every later version.
func TestFillIsFixed(t *testing.T) {
	data := make([]byte, 4<<18)
	Normal(0.02).Fill(data, 1, "transformer.wte.weight", 0)
	sum := sha256.Sum256(data)
	const want = "39b39e4289e97ae4"
	if got := hex.EncodeToString(sum[:8]); got != want {
		t.Errorf("digest %s, not %s", got, want)
	}
	Constant(1).Fill(data[:8], 1, "x", 0)
	if v := math.Float32frombits(binary.LittleEndian.Uint32(data[4:])); v != 1 {
		t.Errorf("constant 1 became %v", v)
	}
}

func BenchmarkFill(b *testing.B) {
	data := make([]byte, 4<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		Normal(0.02).Fill(data, 1, "w", 0)
	}
}

// TestUniform: the numbers stay within the bound, and their first two moments are those
// of the uniform distribution.
func TestUniform(t *testing.T) {
	const n, bound = 1 << 18, 0.125
	data := make([]byte, 4*n)
	Uniform(bound).Fill(data, 1, "w", 0)
	mean, square := 0.0, 0.0
	for i := range n {
		x := float64(math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:])))
		if math.Abs(x) > bound {
			t.Fatalf("element %d is %g", i, x)
		}
		mean += x / n
		square += x * x / n
	}
	if math.Abs(mean) > 5*bound/math.Sqrt(3*n) || math.Abs(square/(bound*bound/3)-1) > 0.01 {
		t.Errorf("mean %g, mean square %g", mean, square)
	}
}
