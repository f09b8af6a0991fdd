//go:build linux && amd64

package nulldevice

import (
	"slices"
	"testing"
)

// TestTensorDescriptors: what is set is read back, and no more than was asked for.
func TestTensorDescriptors(t *testing.T) {
	device(t, Unlimited)
	d := made(t, "cudnnCreateTensorDescriptor")
	defer must(t, "cudnnDestroyTensorDescriptor", d)
	dims, strides := &[4]int32{2, 3, 4, 5}, &[4]int32{60, 20, 5, 1}
	must(t, "cudnnSetTensorNdDescriptor", d, 2, 4, at(t, dims), at(t, strides))
	kind, rank, gotDims, gotStrides := new(int32), new(int32), new([4]int32), new([4]int32)
	must(t, "cudnnGetTensorNdDescriptor", d, 3, at(t, kind), at(t, rank), at(t, gotDims), at(t, gotStrides))
	if *kind != 2 || *rank != 4 || *gotDims != [4]int32{2, 3, 4} || *gotStrides != [4]int32{60, 20, 5} {
		t.Errorf("type %d, rank %d, %v, %v", *kind, *rank, *gotDims, *gotStrides)
	}
	if r := do(t, "cudnnSetTensorNdDescriptor", d, 2, 9, at(t, dims), at(t, strides)); r == 0 {
		t.Error("nine dimensions were taken")
	}
}

// TestWorkspaces: a size that only the library knows is 0, whatever stood there, but for the states
// of a dropout.
func TestWorkspaces(t *testing.T) {
	device(t, Unlimited)
	h := made(t, "cudnnCreate")
	defer must(t, "cudnnDestroy", h)
	for _, c := range []struct {
		name   string
		place  int
		wanted uint64
	}{{"cudnnDropoutGetStatesSize", 1, 6488064}, {"cudnnGetConvolutionForwardWorkspaceSize", 6, 0}} {
		size := new(uint64)
		*size = 99
		args := make([]uintptr, c.place+1)
		args[0], args[c.place] = h, at(t, size)
		must(t, c.name, args...)
		if *size != c.wanted {
			t.Errorf("%s: %d, want %d", c.name, *size, c.wanted)
		}
	}
}

// TestReductionSizes: the workspace of a reduction, and its places, are those of an H200.
func TestReductionSizes(t *testing.T) {
	device(t, Unlimited)
	h, how := made(t, "cudnnCreate"), made(t, "cudnnCreateReduceTensorDescriptor")
	defer must(t, "cudnnDestroy", h)
	defer must(t, "cudnnDestroyReduceTensorDescriptor", how)
	from, to := made(t, "cudnnCreateTensorDescriptor"), made(t, "cudnnCreateTensorDescriptor")
	defer must(t, "cudnnDestroyTensorDescriptor", from)
	defer must(t, "cudnnDestroyTensorDescriptor", to)
	const single, double, without, with = 0, 1, 0, 1
	for _, c := range []struct {
		kind, places    uintptr
		in, out         [3]int32
		indices, wanted uint64
	}{
		{single, without, [3]int32{2, 3, 5}, [3]int32{2, 1, 5}, 0, 120},
		{double, without, [3]int32{2, 3, 5}, [3]int32{1, 1, 5}, 0, 240},
		{single, with, [3]int32{2, 3, 5}, [3]int32{2, 1, 5}, 40, 240},
		{double, with, [3]int32{2, 3, 5}, [3]int32{2, 1, 5}, 40, 360},
		{single, with, [3]int32{3, 1, 1}, [3]int32{1, 1, 1}, 4, 16},
	} {
		must(t, "cudnnSetReduceTensorDescriptor", how, 3, c.kind, 0, c.places, 0)
		strides := &[3]int32{15, 5, 1}
		must(t, "cudnnSetTensorNdDescriptor", from, 0, 3, at(t, &c.in), at(t, strides))
		must(t, "cudnnSetTensorNdDescriptor", to, 0, 3, at(t, &c.out), at(t, strides))
		size := new(uint64)
		must(t, "cudnnGetReductionIndicesSize", h, how, from, to, at(t, size))
		if *size != c.indices {
			t.Errorf("%v to %v: %d bytes of places, want %d", c.in, c.out, *size, c.indices)
		}
		must(t, "cudnnGetReductionWorkspaceSize", h, how, from, to, at(t, size))
		if *size != c.wanted {
			t.Errorf("%v to %v: %d bytes, want %d", c.in, c.out, *size, c.wanted)
		}
	}
}

// TestRecurrentParameters: the shapes of an LSTM's parameters, by layer.
func TestRecurrentParameters(t *testing.T) {
	device(t, Unlimited)
	r := made(t, "cudnnCreateRNNDescriptor")
	defer must(t, "cudnnDestroyRNNDescriptor", r)
	const lstm, both, input, hidden = 2, 1, 5, 7
	must(t, "cudnnSetRNNDescriptor_v8", r, 0, lstm, 0, both, 0, 0, 0, 0, input, hidden)
	m, b := made(t, "cudnnCreateTensorDescriptor"), made(t, "cudnnCreateTensorDescriptor")
	defer must(t, "cudnnDestroyTensorDescriptor", m)
	defer must(t, "cudnnDestroyTensorDescriptor", b)
	for _, c := range []struct {
		layer, which uintptr
		want         []int32
	}{{0, 0, []int32{1, 7, 5}}, {1, 3, []int32{1, 7, 5}}, {0, 4, []int32{1, 7, 7}}, {2, 0, []int32{1, 7, 14}}} {
		mAt, bAt := new(uintptr), new(uintptr)
		must(t, "cudnnGetRNNWeightParams", 0, r, c.layer, 1000, 4096, c.which, m, at(t, mAt), b, at(t, bAt))
		kind, rank, dims, strides := new(int32), new(int32), new([3]int32), new([3]int32)
		must(t, "cudnnGetTensorNdDescriptor", m, 3, at(t, kind), at(t, rank), at(t, dims), at(t, strides))
		if *rank != 3 || !slices.Equal(dims[:], c.want) || *mAt != 4096 || *bAt != 4096 {
			t.Errorf("layer %d, matrix %d: %v at %d and %d, want %v", c.layer, c.which, *dims, *mAt, *bAt, c.want)
		}
	}
}

// TestBackend: attributes of a graph's descriptors are kept, replaced and read back; what only
// the library knows is one engine without workspace.
func TestBackend(t *testing.T) {
	d := device(t, Unlimited)
	before := d.Counters().Handles
	p := new(uintptr)
	must(t, "cudnnBackendCreateDescriptor", 17, at(t, p))
	b := *p
	const dimensions, int64Type, floatType = 902, 3, 4
	values := &[3]int64{4, 5, 6}
	must(t, "cudnnBackendSetAttribute", b, dimensions, int64Type, 1, at(t, values))
	must(t, "cudnnBackendSetAttribute", b, 7, floatType, 1, at(t, values))
	must(t, "cudnnBackendSetAttribute", b, dimensions, int64Type, 3, at(t, values))
	count, got := new(int64), new([3]int64)
	must(t, "cudnnBackendGetAttribute", b, dimensions, int64Type, 2, at(t, count), at(t, got))
	if *count != 3 || *got != [3]int64{4, 5, 0} {
		t.Errorf("%d: %v", *count, *got)
	}
	if r := do(t, "cudnnBackendGetAttribute", b, dimensions, floatType, 2, at(t, count), at(t, got)); r == 0 {
		t.Error("integers were read as floats")
	}
	if r := do(t, "cudnnBackendSetAttribute", b, dimensions, int64Type, ^uintptr(0)>>1, at(t, values)); r == 0 {
		t.Error("more bytes than there are were taken")
	}
	for name, want := range map[uintptr]int64{202: 1, 303: 1, 304: 1, 402: 1, 1301: 1, 1303: 0, 302: 0} {
		got[0] = 99
		must(t, "cudnnBackendGetAttribute", b, name, int64Type, 1, at(t, count), at(t, got))
		if *count != want {
			t.Errorf("attribute %d: %d elements, want %d", name, *count, want)
		}
		if name == 402 && got[0] != 0 {
			t.Errorf("workspace of %d bytes", got[0])
		}
	}
	must(t, "cudnnBackendDestroyDescriptor", b)
	if after := d.Counters().Handles; after != before {
		t.Errorf("%d handles, %d before", after, before)
	}
}
