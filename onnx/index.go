package onnx

// Indices into tensors as operators have them: axes and bounds that count from the end where
// they are negative, and strides.

import "iter"

// Axis counts an axis from the front; a negative one is given from the end. false:
// a value of this rank does not have it.
func Axis(axis int64, rank int) (int, bool) {
	if axis < 0 {
		axis += int64(rank)
	}
	return int(axis), axis >= 0 && axis < int64(rank)
}

// Consecutive reports that indices into an axis of n, of which there are some, count up by one, and
// from where.
func Consecutive(indices []int64, n int64) (start int64, ok bool) {
	start = indices[0]
	if start < 0 {
		start += n
	}
	for i, k := range indices {
		if k < 0 {
			k += n
		}
		if k != start+int64(i) {
			return 0, false
		}
	}
	return start, start >= 0 && start+int64(len(indices)) <= n
}

// SliceBounds is from where up to where a Slice takes elements of an axis of n: bounds beyond
// it are cut, and with a negative step the range ends at -1 at the least.
func SliceBounds(start, end, step, n int64) (from, to int64) {
	if start < 0 {
		start += n
	}
	if end < 0 {
		end += n
	}
	if step < 0 {
		return min(max(start, 0), n-1), min(max(end, -1), n-1)
	}
	return min(max(start, 0), n), min(max(end, 0), n)
}

// Strides are how many elements lie between neighbours along each axis of a tensor that lies
// row by row.
func Strides(dims []int64) []int64 {
	s := make([]int64, len(dims))
	step := int64(1)
	for i := len(dims) - 1; i >= 0; i-- {
		s[i] = step
		step *= dims[i]
	}
	return s
}

// Strided yields, for each element of a tensor of those extents row by row, where it lies by
// the strides, from base on.
func Strided(dims, strides []int64, base int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		n, _ := Elements(dims)
		at, place := make([]int64, len(dims)), base
		for range n {
			if !yield(place) {
				return
			}
			for k := len(dims) - 1; k >= 0; k-- {
				at[k]++
				place += strides[k]
				if at[k] < dims[k] {
					break
				}
				place -= strides[k] * dims[k]
				at[k] = 0
			}
		}
	}
}
