package data

// From a source and a model to batches: which inputs are fed, how large they are,
// and what goes into them.

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime"
)

// An InputError is an input of the model that the data cannot feed.
type InputError struct {
	Input  string
	Reason string // what is wrong, and what to do
}

func (e *InputError) Error() string { return fmt.Sprintf("input %q: %s", e.Input, e.Reason) }

// A target is a model while data are mapped onto it.
type target struct {
	m      *onnx.Model // a typed copy
	source *onnx.Model
	dims   map[string]int64
	given  map[string]int64 // by the caller
	known  *infer.Result
	at     map[string]int64 // the dims that the copy has
	loss   string
	inputs []*onnx.Value // that need data
	skip   map[string]bool
	batch  int64
	notes  []string
	// labels are those that the loss compares with, by input. Where each batch weighs the same, however
	// many are ignored, none are.
	labels []labels
}

// For maps the data onto the inputs of a model, a forward or a training graph. The
// model stays as it is. It may be asked again, for
// another model or batch. Its errors are of bad input.
func (s *Source) For(m *onnx.Model, sizes Sizes) (*Data, error) {
	t := &target{source: m, given: sizes.Dims, dims: maps.Clone(sizes.Dims), batch: sizes.Batch}
	if t.dims == nil {
		t.dims = map[string]int64{}
	}
	defer t.close()
	if sizes.Batch < 0 {
		return nil, fmt.Errorf("--batch %d: want at least 1", sizes.Batch)
	}
	if err := t.sort(sizes.Roles); err != nil {
		return nil, err
	}
	if err := t.infer(); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(s.o.Fill)) {
		if t.input(name) == nil {
			return nil, fmt.Errorf("--fill %s: the model has no input of that name that needs data; it has %s", name, t.inputNames())
		}
	}
	if s.train.kind == kindNPZ {
		return s.feedArrays(t)
	}
	return s.feedTokens(t)
}

// sort finds the inputs that need data: those that are no parameters, no state, and
// no scalar that every step sets.
func (t *target) sort(given *runtime.Roles) error {
	roles, err := runtime.FindRoles(t.source, given)
	if err != nil {
		return err
	}
	parameters, state, err := runtime.SortInputs(t.source, roles)
	if err != nil {
		return err
	}
	t.loss, t.skip = roles.Loss, map[string]bool{}
	for _, name := range append(parameters, state...) {
		t.skip[name] = true
	}
	for _, v := range t.source.Graph.Inputs {
		if v.Init != nil || runtime.IsTrainingScalar(v) {
			t.skip[v.Name] = true
		}
	}
	return nil
}

// infer makes a copy of the model with the dimensions that are known so far, unless
// there is one.
func (t *target) infer() error {
	if t.m != nil && maps.Equal(t.at, t.dims) {
		return nil
	}
	t.close()
	t.at = maps.Clone(t.dims)
	m, err := t.source.Clone()
	if err != nil {
		return err
	}
	t.m, t.inputs = m, nil
	if _, err := m.InlineFunctions(infer.Provided, nil); err != nil {
		return err
	}
	if t.known, err = infer.Model(m, infer.Options{Dims: t.dims}); err != nil {
		return err
	}
	for _, v := range m.Graph.Inputs {
		if !t.skip[v.Name] {
			t.inputs = append(t.inputs, v)
		}
	}
	return nil
}

func (t *target) close() {
	if t.m != nil {
		t.m.Close()
		t.m, t.known, t.inputs = nil, nil, nil // batches may keep the rest
	}
}

// input is one that needs data, nil where none of that name does.
func (t *target) input(name string) *onnx.Value {
	for _, v := range t.inputs {
		if v.Name == name {
			return v
		}
	}
	return nil
}

func (t *target) inputNames() string {
	return cmp.Or(strings.Join(onnx.Names(t.inputs), ", "), "none")
}

// lossValue is the loss, nil where it is not known.
func (t *target) lossValue() *onnx.Value { return t.m.Graph.Value(t.loss) }

// bind gives a free dimension of an input its number, or checks one that it has.
func (t *target) bind(v *onnx.Value, axis int, n int64) bool {
	d := v.Type.Shape[axis].Subst(t.dims)
	if have, ok := d.Int(); ok {
		return have == n
	}
	symbols := d.Symbols()
	if len(symbols) != 1 || d.String() != symbols[0] {
		return false
	}
	t.dims[symbols[0]] = n
	return true
}

// bindBatch settles the size of a batch, the leading axis of v.
func (t *target) bindBatch(v *onnx.Value) error {
	d := v.Type.Shape[0].Subst(t.dims)
	n, fixed := d.Int()
	switch {
	case t.batch == 0 && fixed:
		t.batch = n
	case t.batch == 0:
		return &InputError{v.Name, fmt.Sprintf("its batch (%s) is free: give --batch N", d)}
	case !t.bind(v, 0, t.batch):
		return fmt.Errorf("--batch %d: the model's batch is %s, fixed in the file (input %q): leave --batch out (a training takes several with --accumulate), or export the model with a free batch", t.batch, d, v.Name)
	}
	if t.batch < 1 {
		return &InputError{v.Name, "an empty batch"}
	}
	return nil
}

// shape is the shape of an input, all of whose dimensions must be known by now.
func (t *target) shape(v *onnx.Value) ([]int64, error) {
	if v.Type.Other != nil || v.Type.DType.Size() == 0 {
		return nil, &InputError{v.Name, fmt.Sprintf("inputs of type %s are not supported", v.Type)}
	}
	if !v.Type.Ranked {
		return nil, &InputError{v.Name, "its shape is unknown: export the model with the shapes of its inputs"}
	}
	out, free := v.Type.Shape.Extents(t.dims)
	if free >= 0 {
		d := v.Type.Shape[free]
		if names := d.Symbols(); len(names) > 0 {
			return nil, &InputError{v.Name, fmt.Sprintf("dimension %d (%s) is free: add --dim %s=N", free, d, names[0])}
		}
		return nil, &InputError{v.Name, fmt.Sprintf("dimension %d is unknown", free)}
	}
	if n, ok := onnx.Elements(out); !ok || n > math.MaxInt64/8 {
		return nil, &InputError{v.Name, fmt.Sprintf("shape %v is too large", out)}
	}
	return out, nil
}

// divided shares samples between training and validation: so many of the first are
// trained on. There is at least one of each.
func (s *Source) divided(samples int64) (train int64, err error) {
	if s.share == 0 {
		return samples, nil
	}
	val := min(max(1, int64(math.Round(float64(samples)*s.share))), samples-1)
	if val < 1 {
		return 0, fmt.Errorf("--val %s: the data is a single sample, which cannot be shared between training and validation", s.o.Val)
	}
	return samples - val, nil
}

// batches makes the batches of one set and says what is left over.
func (t *target) batches(b Batches, what string) (*Batches, error) {
	b.batch = max(1, b.batch)
	out := newBatches(b)
	if out.Len() < 1 {
		return nil, fmt.Errorf("%s: %s, fewer than the %d of a batch: use more data or a smaller batch", what, count(out.samples, "sample"), out.batch)
	}
	if left := out.Left(); out.once && left > 0 {
		t.notes = append(t.notes, fmt.Sprintf("%s: %s at the end, fewer than a batch of %d: left out", what, count(left, "sample"), out.batch))
	}
	return out, nil
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// constant is the content of an input that gets the same in every batch.
func constant(v *onnx.Value, shape []int64, word string) ([]byte, error) {
	n, _ := onnx.Elements(shape)
	d := v.Type.DType
	data := make([]byte, n*d.Size())
	if word == fillZeros {
		return data, nil
	}
	if d.IsFloat() || d == onnx.Bool {
		if word != fillOnes {
			return nil, &InputError{v.Name, fmt.Sprintf("--fill %s applies only to whole numbers, not to %s", word, d)}
		}
		one := onnx.FloatTensor(d, []float64{1})
		if d == onnx.Bool {
			one = onnx.NewTensor(d, []int64{1}, []byte{1})
		}
		raw, err := one.Bytes()
		if err != nil {
			return nil, err
		}
		for i := range n {
			copy(data[i*d.Size():], raw)
		}
		return data, nil
	}
	length := int64(1)
	if len(shape) > 0 {
		length = shape[len(shape)-1]
	}
	for i := range n {
		x := int64(1)
		if word == fillPositions {
			x = i % length
		}
		if x >= largest(d) {
			return nil, &InputError{v.Name, fmt.Sprintf("%s does not hold position %d", d, x)}
		}
		d.PutInt(data[i*d.Size():], x)
	}
	return data, nil
}

// constants are the parts that are the same in every batch.
func (t *target) constants(fill map[string]string) ([]part, error) {
	var parts []part
	for _, name := range slices.Sorted(maps.Keys(fill)) {
		v := t.input(name)
		shape, err := t.shape(v)
		if err != nil {
			return nil, err
		}
		data, err := constant(v, shape, fill[name])
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{name: name, kind: v.Type.DType, shape: shape, fixed: data})
	}
	return parts, nil
}

var errNoInput = errors.New("the model has no input that data could be fed to")
