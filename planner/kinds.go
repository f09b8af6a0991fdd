package planner

import (
	"slices"
	"sort"
)

// Kinds: what has the same place in the structure. Each value gets a hash of
// its size and of the operator that makes it; a few times over, the hashes of
// what it is made from and of what is made from it are mixed in (the colour
// refinement of Weisfeiler and Leman). So the values of one layer find their
// counterparts in all other layers, without any name.

const (
	hashPrime = 1099511628211
	hashOdd   = 0x2545F4914F6CDD1D
)

// valueHashes returns a hash of each value's neighbourhood.
func (ix *index) valueHashes(rounds int) []uint64 {
	hash := make([]uint64, len(ix.root))
	for v := range hash {
		h := uint64(ix.p.Graph.Values[v].Bytes)*0x9E3779B97F4A7C15 ^ uint64(ix.p.Graph.Values[v].Kind)
		if op := ix.producer[v]; op >= 0 {
			for _, c := range []byte(ix.p.Ops[op].Type) {
				h = (h ^ uint64(c)) * hashPrime
			}
		}
		hash[v] = h
	}
	next := make([]uint64, len(hash))
	for range rounds {
		for v := range hash {
			h := hash[v]
			if op := ix.producer[v]; op >= 0 {
				for k, u := range ix.p.Graph.Nodes[op].Inputs {
					if u >= 0 {
						h = (h ^ hash[u] ^ uint64(k)) * hashPrime
					}
				}
			}
			var sum uint64
			for _, op := range ix.readers[v] {
				for _, u := range ix.outs[op] {
					sum += hash[u] * hashOdd
				}
			}
			next[v] = (h ^ sum>>7 ^ sum<<9) * hashPrime
		}
		hash, next = next, hash
	}
	return hash
}

// kinds groups the droppable roots by kind. Values of a kind, and kinds by
// their first value, stand in forward order.
func (ix *index) kinds() [][]int {
	if ix.kindsOf != nil {
		return ix.kindsOf
	}
	hash := ix.valueHashes(ix.tune.valueRounds)
	place := places(ix.topo)
	order := slices.Clone(ix.stash)
	sort.Slice(order, func(a, b int) bool { return place[ix.producer[order[a]]] < place[ix.producer[order[b]]] })
	ix.kindsOf = grouped(order, func(r int) uint64 { return hash[r] })
	return ix.kindsOf
}

// opKinds groups the operators by the kind of their first output.
func (ix *index) opKinds() [][]int {
	if ix.opKindsOf != nil {
		return ix.opKindsOf
	}
	hash := ix.valueHashes(ix.tune.opRounds)
	ops := slices.DeleteFunc(slices.Clone(ix.topo), func(op int) bool { return len(ix.outs[op]) == 0 })
	ix.opKindsOf = grouped(ops, func(op int) uint64 { return hash[ix.outs[op][0]] })
	return ix.opKindsOf
}
