package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// pictures has places of tokens 7 taken by pictures, as a model of words and pictures does.
// The words beside them are found, and among these those beyond 10: a size that another
// decides.
func pictures() string {
	return fmt.Sprintf(`model ir=10 opset=20
graph g {
  in  ids int64[2,12]
  in  seen float32[8,16]
  init words float32[50,32] = [%s]
  init look float32[16,32] = [%s]
  init deep float32[32,64] = [%s]
  init back float32[64,32] = [%s]
  init seven int64[] = 7
  init ten int64[] = 10
  init zero int64[1] = [0]
  init last int64[1] = [-1]
  init wide int64[3] = [2,12,32]
  x = Gather(words, ids)
  p = MatMul(seen, look)
  is = Equal(ids, seven)
  is3 = Unsqueeze(is, last)
  mask = Expand(is3, wide)
  at = NonZero(mask)
  places = Transpose(at) {perm=[1,0]}
  flat = Reshape(p, last)
  n = Shape(places) {end=1}
  part = Slice(flat, zero, n, zero)
  both = ScatterND(x, places, part)
  h = MatMul(both, deep)
  r = Relu(h)
  y = MatMul(r, back)
  q = Mul(y, y)
  mean = ReduceMean(q) {keepdims=0}
  isflat = Reshape(is, last)
  other = Not(isflat)
  idsflat = Reshape(ids, last)
  spoken = Compress(idsflat, other) {axis=0}
  rare = Greater(spoken, ten)
  found = NonZero(rare)
  foundflat = Reshape(found, last)
  picked = Gather(spoken, foundflat)
  e = Gather(words, picked)
  e2 = Mul(e, e)
  more = ReduceSum(e2) {keepdims=0}
  loss = Add(mean, more)
  out loss float32[]
}
`, someValues(50*32), someValues(16*32), someValues(32*64), someValues(64*32))
}

// picturesBatch is a batch with that many tokens for pictures.
func picturesBatch(n int) map[string]runtime.Tensor {
	ids := make([]byte, 8*24)
	for i := range 24 {
		token := uint64(8 + i)
		if i < n {
			token = 7
		}
		binary.LittleEndian.PutUint64(ids[8*i:], token)
	}
	return map[string]runtime.Tensor{
		"ids":  {Type: onnx.Int64, Shape: []int64{2, 12}, Data: ids},
		"seen": {Type: onnx.Float32, Shape: []int64{8, 16}, Data: make([]byte, 4*8*16)},
	}
}

// TestSizesOfData: sizes that data alone tells are found from a batch, those that others
// decide too, and a plan made for it reaches its peak to the byte; the file is as good for
// another batch, whose peak is predicted for that.
func TestSizesOfData(t *testing.T) {
	e := engine(t)
	m := trainedBy(t, optim.AdamW, pictures(), "*")
	many := picturesBatch(8)
	o := Options{OptLevel: 1, Threads: 2, Sizes: SizesFor(e, runtime.Options{Feeds: many}, false)}
	asPredicted(t, e, m, many, o)
	p, err := NewPlanner(e, m, o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Plan("optimal", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !AsksForData(f.Model, f.Roles()) || f.Model.Graph.Value("at").Type.IsStatic() {
		t.Errorf("what NonZero finds is %s in the file", f.Model.Graph.Value("at").Type)
	}
	few := runtime.Options{Level: 1, Threads: 2, Provider: ort.CPU, Feeds: picturesBatch(2)}
	roles := f.Roles()
	few.Roles = &roles
	s, err := e.Open(f.Model, few)
	peak := onlyPeak(t, s, err)
	if peak >= f.Peak {
		t.Errorf("%d bytes with few pictures, %d with many", peak, f.Peak)
	}
	again, err := Predict(e, f.Model, roles, Options{OptLevel: 1, Threads: 2, Sizes: SizesFor(e, few, true)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Exact() || again.LivePeak != peak {
		t.Errorf("%d bytes predicted of another batch, %d measured; unknown: %v", again.LivePeak, peak, again.Unknown)
	}
}

// TestSizesOfDataByName: ONNX Runtime hands a buffer on where extents have the same name, also
// of what it makes where it moves a Transpose behind a Split: of that it knows the names of what
// the Split made before.
func TestSizesOfDataByName(t *testing.T) {
	e := engine(t)
	m := trainedBy(t, optim.SGD, fmt.Sprintf(`model ir=10 opset=20
graph g {
  in  ids int64[2,12]
  value index int64[2,kept]
  value from int64[1,kept]
  value to int64[1,kept]
  value fromflat int64[kept]
  value toflat int64[kept]
  value fromat int64[kept,1]
  value toat int64[kept,1]
  value fromplace int64[kept,1]
  value toplace int64[kept,1]
  init w float32[40] = [%s]
  init seven int64[] = 7
  init none int64[] = 0
  init zero int64[1] = [0]
  init last int64[1] = [-1]
  init column int64[2] = [-1, 1]
  init ones int64[2] = [1, 1]
  edges = Transpose(ids) {perm=[1,0]}
  first = Gather(ids, none)
  is = Equal(first, seven)
  other = Not(is)
  found = NonZero(other)
  places = Reshape(found, column)
  picked = GatherND(edges, places)
  index = Transpose(picked) {perm=[1,0]}
  from, to = Split(index, ones) {axis=0}
  fromflat = Squeeze(from, zero)
  toflat = Squeeze(to, zero)
  fromat = Unsqueeze(fromflat, last)
  fromplace = Concat(fromat) {axis=-1}
  x = GatherND(w, fromplace)
  toat = Unsqueeze(toflat, last)
  toplace = Concat(toat) {axis=-1}
  y = GatherND(w, toplace)
  z = Mul(x, y)
  loss = ReduceSum(z) {keepdims=0}
  out loss float32[]
}
`, someValues(40)), "*")
	batch := picturesBatch(4)
	delete(batch, "seen")
	p, err := NewPlanner(e, m, Options{OptLevel: 1, Threads: 1, Sizes: SizesFor(e, runtime.Options{Feeds: batch}, false)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Plan("none", 0)
	if err != nil {
		t.Fatal(err)
	}
	roles := f.Roles()
	s, err := e.Open(f.Model, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Feeds: batch, Roles: &roles})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Place(f.Prediction.Slab()); err != nil {
		t.Fatal(err)
	}
	got, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if got.LivePeakBytes != f.Peak || got.AstrayBytes != 0 {
		t.Errorf("live peak %d, predicted %d; %d bytes astray", got.LivePeakBytes, f.Peak, got.AstrayBytes)
	}
}

// TestSizesOfLengths: sequences that are cut to the longest have a size that the data tells,
// though parameters have a part in what is cut, and though the file has a name for it.
func TestSizesOfLengths(t *testing.T) {
	e := engine(t)
	for _, named := range []string{"", "  value cut float32[2,longest,32]\n"} {
		m := trainedBy(t, optim.SGD, fmt.Sprintf(`model ir=10 opset=20
graph g {
  in  ids int64[2,12]
  in  lengths int64[2]
%s  init words float32[50,32] = [%s]
  init deep float32[32,16] = [%s]
  init zero int64[1] = [0]
  init second int64[1] = [1]
  init one int64[1] = [1]
  x = Gather(words, ids)
  longest = ReduceMax(lengths, zero)
  cut = Slice(x, zero, longest, second, one)
  h = MatMul(cut, deep)
  r = Relu(h)
  q = Mul(r, r)
  loss = ReduceMean(q) {keepdims=0}
  out loss float32[]
}
`, named, someValues(50*32), someValues(32*16)), "*")
		batch := picturesBatch(0)
		delete(batch, "seen")
		lengths := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 5), 9)
		batch["lengths"] = runtime.Tensor{Type: onnx.Int64, Shape: []int64{2}, Data: lengths}
		asPredicted(t, e, m, batch, Options{OptLevel: 1, Threads: 2, Sizes: SizesFor(e, runtime.Options{Feeds: batch}, false)})
	}
}

// TestSizesNotOfData: what a parameter has a part in is not asked for, and an input that the
// batch lacks is named.
func TestSizesNotOfData(t *testing.T) {
	e := engine(t)
	m := trainedBy(t, optim.AdamW, fmt.Sprintf(`model ir=10 opset=20
graph g {
  in  x float32[4,8]
  init w float32[8,8] = [%s]
  init zero float32[] = 0
  init last int64[1] = [-1]
  y = MatMul(x, w)
  up = Greater(y, zero)
  at = NonZero(up)
  places = Transpose(at) {perm=[1,0]}
  z = GatherND(y, places)
  loss = ReduceSum(z) {keepdims=0}
  out loss float32[]
}
`, someValues(64)), "*")
	p, err := NewPlanner(e, m, Options{OptLevel: 1, Threads: 2, Sizes: SizesFor(e, runtime.Options{}, false)})
	if err != nil {
		t.Fatal(err)
	}
	f, err := p.Plan("none", 0)
	if err != nil {
		t.Fatal(err)
	}
	if f.Prediction.Exact() || AsksForData(f.Model, f.Roles()) {
		t.Errorf("predicted to the byte, or asks for a batch: %v", f.Prediction.Unknown)
	}
	_, err = NewPlanner(e, trainedBy(t, optim.AdamW, pictures(), "*"), Options{OptLevel: 1, Sizes: SizesFor(e, runtime.Options{}, false)})
	var missing *runtime.FeedError
	if !errors.As(err, &missing) || missing.Input != "ids" {
		t.Errorf("error %v", err)
	}
}
