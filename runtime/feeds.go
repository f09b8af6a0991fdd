package runtime

// Where the value of each input comes from, in order of precedence: a feed of
// its own, the feeds of an archive, remat.parameters, a scalar that training
// sets (lr, step, loss_scale), zeros for optimizer state, random.
//
// Types and shapes are checked here, before ONNX Runtime sees them; wider floats are
// rounded where an input is of a half type. Free dimensions get their numbers here: from
// --dim, else from the first feed that has one.

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A FeedError says that an input cannot have the value it was given.
type FeedError struct {
	Input  string
	Reason string
}

func (e *FeedError) Error() string { return fmt.Sprintf("input %q: %s", e.Input, e.Reason) }

// Prefixes of the keys of a feeds archive.
const (
	inputPrefix     = "in:"
	parameterPrefix = "param:"
)

// a source says what an input's value came from.
type source string

const (
	fromFeed   source = "feed"
	fromFile   source = "remat.parameters"
	fromSeed   source = "seed in remat.parameters"
	fromScalar source = "training scalar"
	fromZero   source = "zero"
	fromRandom source = "random"

	fromOwn     source = "memory of the caller's"
	fromRoom    source = "memory of the caller's, which it counts"
	fromSession source = "another session"
)

// feeds resolves the values of all inputs of a model.
type feeds struct {
	model *onnx.Model
	dims  map[string]int64
	// given are feeds by input; asParameter tells those named "param:NAME".
	given       map[string]Tensor
	asParameter map[string]bool
	located     map[string]Location
}

// newFeeds sorts what the options give by input: feeds, then data, then single feeds,
// the later winning over the earlier.
func newFeeds(m *onnx.Model, o *Options) (*feeds, error) {
	if err := o.round(m); err != nil {
		return nil, err
	}
	f := &feeds{model: m, dims: map[string]int64{}, given: map[string]Tensor{}, asParameter: map[string]bool{}}
	maps.Copy(f.dims, o.Dims)
	var err error
	if f.located, err = ReadLocations(m); err != nil {
		return nil, err
	}
	steps, of := int64(1), ""
	for _, v := range m.Graph.Inputs {
		fed := ""
		for _, key := range []string{v.Name, inputPrefix + v.Name, parameterPrefix + v.Name} {
			t, ok := o.Feeds[key]
			switch {
			case !ok:
			case fed == "":
				fed, f.given[v.Name] = key, t
				f.asParameter[v.Name] = strings.HasPrefix(key, parameterPrefix) && !strings.HasPrefix(v.Name, parameterPrefix)
			case inputOf(m.Graph, key) == v && !t.equal(f.given[v.Name]):
				return nil, &FeedError{v.Name, fmt.Sprintf("keys %q and %q feed it other values: leave one out", fed, key)}
			}
		}
		if t, ok := o.Data[v.Name]; ok {
			if t.Type == onnx.Undefined {
				return nil, f.check(v, t)
			}
			if len(t.Shape) == 0 || t.Shape[0] == 0 {
				return nil, &FeedError{v.Name, fmt.Sprintf("data of shape %v: the leading axis must be the step, and it is empty", t.Shape)}
			}
			switch n := t.Shape[0]; { // one step is the same in all
			case steps == 1:
				steps, of = n, v.Name
			case n > 1 && n != steps:
				return nil, &FeedError{v.Name, fmt.Sprintf("data of %d steps, that of input %q has %d", n, of, steps)}
			}
			f.given[v.Name] = t.at(0)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.Feed)) {
		v := m.Graph.Value(name)
		if v == nil || !v.IsInput() {
			return nil, &FeedError{name, "the model has no input of that name; it has " + inputNames(m.Graph)}
		}
		f.given[name] = o.Feed[name]
	}
	return f, f.bindDims()
}

// round gives inputs of a half type, whose feeds and data are in a wider one, feeds and
// data in theirs. The caller's maps stay as they are.
func (o *Options) round(m *onnx.Model) error {
	for _, given := range []*map[string]Tensor{&o.Feeds, &o.Data, &o.Feed} {
		copied := false
		for _, key := range slices.Sorted(maps.Keys(*given)) {
			v, t := inputOf(m.Graph, key), (*given)[key]
			if v == nil || !Rounds(t.Type, v.Type.DType) {
				continue
			}
			rounded, err := t.RoundedTo(v.Type.DType)
			if err != nil {
				return &FeedError{v.Name, err.Error()}
			}
			if !copied {
				*given, copied = maps.Clone(*given), true
			}
			(*given)[key] = rounded
		}
	}
	return nil
}

// inputOf is the input that a key of an archive is for, nil if none.
func inputOf(g *onnx.Graph, key string) *onnx.Value {
	for _, prefix := range []string{"", inputPrefix, parameterPrefix} {
		name, ok := strings.CutPrefix(key, prefix)
		if v := g.Value(name); ok && v != nil && v.IsInput() {
			return v
		}
	}
	return nil
}

// DimsOf returns the numbers of a model's free dimensions: those of the options,
// else those of the first feed that has one.
func DimsOf(m *onnx.Model, o Options) (map[string]int64, error) {
	given := o.Feed
	o.Feed = map[string]Tensor{}
	for name, t := range given { // a feed may be for a graph that is made of this one
		if v := m.Graph.Value(name); v != nil && v.IsInput() {
			o.Feed[name] = t
		}
	}
	f, err := newFeeds(m, &o)
	if err != nil {
		return nil, err
	}
	return f.dims, nil
}

func inputNames(g *onnx.Graph) string {
	var names []string
	for _, v := range g.Inputs {
		if len(names) == 8 {
			names = append(names, "…")
			break
		}
		names = append(names, v.Name)
	}
	return strings.Join(names, ", ")
}

// bindDims checks every feed against its input's type, and takes the numbers
// of free dimensions from them.
func (f *feeds) bindDims() error {
	for _, v := range f.model.Graph.Inputs {
		if t, ok := f.given[v.Name]; ok {
			if err := f.check(v, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// check compares a feed with the input's declared type, and takes a free dimension's
// number from the first feed that has it.
func (f *feeds) check(v *onnx.Value, t Tensor) error {
	want := v.Type
	if t.Type == onnx.Undefined {
		return &FeedError{v.Name, fmt.Sprintf("feed is not an array of real numbers, want %s", want)}
	}
	if want.Known() && want.DType != t.Type {
		return &FeedError{v.Name, fmt.Sprintf("feed has type %s, want %s", t.Type, want.DType)}
	}
	if size, ok := onnx.TensorOf(t.Type, onnx.StaticShape(t.Shape...)).Bytes(); ok && size != int64(len(t.Data)) {
		return &FeedError{v.Name, fmt.Sprintf("feed has %d bytes of data, want %d for %s", len(t.Data), size, t)}
	}
	if !want.Ranked {
		return nil
	}
	if len(want.Shape) != len(t.Shape) {
		return &FeedError{v.Name, fmt.Sprintf("feed has shape %v, want %s", t.Shape, want.Shape)}
	}
	for i, d := range want.Shape {
		if symbols := d.Symbols(); len(symbols) == 1 && d.String() == symbols[0] {
			if _, ok := f.dims[symbols[0]]; !ok {
				f.dims[symbols[0]] = t.Shape[i]
			}
		}
		if n, ok := d.Subst(f.dims).Int(); ok && n != t.Shape[i] {
			return &FeedError{v.Name, fmt.Sprintf("feed has shape %v, want %s%s", t.Shape, want.Shape, f.because(d))}
		}
	}
	return nil
}

// because names the numbers that a free dimension has.
func (f *feeds) because(d onnx.Dim) string {
	var parts []string
	for _, s := range d.Symbols() {
		parts = append(parts, fmt.Sprintf("%s=%d", s, f.dims[s]))
	}
	if parts == nil {
		return ""
	}
	return " with " + strings.Join(parts, ", ")
}

func (f *feeds) has(name string) bool {
	_, ok := f.given[name]
	return ok
}

// shape is the shape of an input, with the numbers of free dimensions in.
func (f *feeds) shape(v *onnx.Value) ([]int64, error) {
	if t, ok := f.given[v.Name]; ok {
		return t.Shape, nil
	}
	if v.Type.Other != nil || !v.Type.Known() || v.Type.DType.Size() == 0 {
		return nil, &FeedError{v.Name, fmt.Sprintf("inputs of type %s are not supported", v.Type)}
	}
	if !v.Type.Ranked {
		return nil, &FeedError{v.Name, "its shape is unknown: feed it"}
	}
	out, free := v.Type.Shape.Extents(f.dims)
	if free >= 0 {
		d := v.Type.Shape[free]
		if names := d.Symbols(); len(names) > 0 {
			return nil, &FeedError{v.Name, fmt.Sprintf("dimension %d (%s) is symbolic: add --dim %s=N, or feed it", free, d, names[0])}
		}
		return nil, &FeedError{v.Name, fmt.Sprintf("dimension %d is unknown: feed it", free)}
	}
	if i := slices.IndexFunc(out, func(n int64) bool { return n < 0 }); i >= 0 {
		return nil, &FeedError{v.Name, fmt.Sprintf("dimension %d is negative", i)}
	}
	if _, err := ort.ByteSize(ortType(v.Type.DType), out); err != nil {
		return nil, &FeedError{v.Name, err.Error()}
	}
	return out, nil
}

// trainingScalars are inputs that a step sets, by name.
var trainingScalars = map[string]onnx.DType{"lr": onnx.Float32, "step": onnx.Int64, "loss_scale": onnx.Float32}

// IsTrainingScalar says whether the input is one that every step sets.
func IsTrainingScalar(v *onnx.Value) bool {
	d, ok := trainingScalars[v.Name]
	return ok && v.Type.DType == d && v.Type.Ranked && len(v.Type.Shape) == 0
}

// setScalar writes a training scalar for step number n, counting from 1.
func (o *Options) setScalar(name string, data []byte, n int) {
	switch name {
	case "lr":
		binary.LittleEndian.PutUint32(data, math.Float32bits(float32(o.LR)))
	case "step":
		binary.LittleEndian.PutUint64(data, uint64(n))
	case "loss_scale":
		binary.LittleEndian.PutUint32(data, math.Float32bits(float32(o.LossScale)))
	}
}
