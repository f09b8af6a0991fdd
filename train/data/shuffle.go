package data

// The order of samples. An epoch's order is a permutation that is computed, not
// stored: a Feistel network on the least even number of bits that can write every
// sample's number, and where a number comes out that is no sample's, the network
// is asked again with that number, until one is (cycle walking). A Feistel network
// is a bijection whatever its round function, and walking a cycle of a bijection
// to the next member of a subset is a bijection of the subset. The domain is less
// than four times the samples, so that four asks are enough on average.
//
// Sources: Luby and Rackoff, "How to construct pseudorandom permutations from
// pseudorandom functions" (1988); Black and Rogaway, "Ciphers with arbitrary finite
// domains" (2002). The round function is the finalizer of SplitMix64 (Steele, Lea
// and Flood, 2014): this is for spreading samples, not for secrets.

import "math/bits"

// feistelRounds are more than the four that make a strong pseudorandom permutation
// of large domains: in small ones a round mixes few bits.
const feistelRounds = 8

// A permutation of the numbers below n.
type permutation struct {
	n    uint64
	half uint // bits of one half of a number
	keys [feistelRounds]uint64
}

// permute returns the order of an epoch, n at least 1.
func permute(n int64, seed, epoch uint64) permutation {
	p := permutation{n: uint64(n), half: max(1, uint(bits.Len64(uint64(n)-1)+1)/2)}
	state := mix(seed) ^ mix(^epoch)
	for i := range p.keys {
		state += 0x9e3779b97f4a7c15
		p.keys[i] = mix(state)
	}
	return p
}

// at is the number at place i.
func (p *permutation) at(i int64) int64 {
	x := uint64(i)
	mask := uint64(1)<<p.half - 1
	for {
		left, right := x>>p.half, x&mask
		for _, key := range p.keys {
			left, right = right, left^mix(right^key)&mask
		}
		if x = left<<p.half | right; x < p.n {
			return int64(x)
		}
	}
}

// mix is the finalizer of SplitMix64, a bijection.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// An order is the endless row of epochs.
type order struct {
	samples int64
	shuffle bool
	seed    uint64

	epoch int64 // that permutation is of; -1: of none
	now   permutation
}

func newOrder(samples int64, shuffle bool, seed uint64) order {
	return order{samples: samples, shuffle: shuffle, seed: seed, epoch: -1}
}

// at is the sample at a place of the row.
func (o *order) at(place int64) int64 {
	epoch, i := place/o.samples, place%o.samples
	if !o.shuffle {
		return i
	}
	if o.epoch != epoch {
		o.epoch, o.now = epoch, permute(o.samples, o.seed, uint64(epoch))
	}
	return o.now.at(i)
}
