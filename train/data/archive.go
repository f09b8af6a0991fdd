package data

// An .npz file: an array for each input, by the keys NAME and in:NAME, as the feeds
// of a run. What the leading axis is follows from the array's rank:
//
//	input [batch, 3, 32, 32], array [50000, 3, 32, 32]       samples
//	input [batch, 3, 32, 32], array [100, batch, 3, 32, 32]  steps, as run --data has it
//	input [1, 128], array [1, 128] beside arrays of 50000    the same for every batch
//
// A step is a sample of its own, and then a batch is one of them. All arrays have as
// many samples, or steps; what every batch gets is an array of exactly the input's
// shape where another array has more rows.

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// forms of an array beside its input.
const (
	bySample = iota
	byStep
	forAll
)

// A binding is an array and the input that it feeds.
type binding struct {
	v     *onnx.Value
	a     *array
	kind  onnx.DType // that the input gets: the array's, or one that it is rounded to
	shape []int64
	form  int
}

func (s *Source) feedArrays(t *target) (*Data, error) {
	d := &Data{Mapping: Mapping{Fill: map[string]string{}}}
	bound, err := t.bindArrays(&s.train, s.o.Fill, d.Mapping.Fill)
	if err != nil {
		return nil, err
	}
	fixed, err := t.constants(d.Mapping.Fill)
	if err != nil {
		return nil, err
	}
	if err := t.findLabels(d); err != nil {
		return nil, err
	}
	if err := bound.sayShared(t, d.Mapping.Labels, s.train.name); err != nil {
		return nil, err
	}
	total := bound.rows
	train, err := s.divided(total)
	if err != nil {
		return nil, err
	}
	if s.o.Evaluate {
		train = 0
	}
	if train > 0 {
		if d.Train, err = t.arrayBatches(s, &s.train, bound, d, fixed, 0, train, false); err != nil {
			return nil, err
		}
	}
	switch {
	case s.val != nil:
		other, err := t.bindArrays(s.val, s.o.Fill, map[string]string{})
		if err != nil {
			return nil, fmt.Errorf("--val: %w", err)
		}
		d.Val, err = t.arrayBatches(s, s.val, other, d, fixed, 0, other.rows, true)
		if err != nil {
			return nil, err
		}
	case train < total:
		if d.Val, err = t.arrayBatches(s, &s.train, bound, d, fixed, train, total-train, true); err != nil {
			return nil, err
		}
	}
	d.Dims, d.Notes = t.dims, t.notes
	d.Mapping.Batch = t.batch
	return d, nil
}

// boundArrays are the arrays of a set, bound to the inputs.
type boundArrays struct {
	list    []binding
	rows    int64 // samples or steps
	bySteps bool
}

// bindArrays finds the array of each input, and what its leading axis is.
func (t *target) bindArrays(d *dataset, given, fill map[string]string) (*boundArrays, error) {
	b := &boundArrays{}
	for _, v := range t.inputs {
		if word, ok := given[v.Name]; ok {
			if word == fillTokens || word == fillLabels {
				return nil, fmt.Errorf("--fill %s=%s applies only to --text and --tokens", v.Name, word)
			}
			fill[v.Name] = word
			continue
		}
		a, ok := d.arrays[v.Name]
		if !ok {
			a, ok = d.arrays["in:"+v.Name]
		}
		if !ok && Unread(v) {
			fill[v.Name] = fillZeros
			continue
		}
		switch {
		case !ok:
			return nil, &InputError{v.Name, fmt.Sprintf("%s has no array of that name (it has %s): add one, or give --fill %s=ones|zeros|positions", d.name, keysOf(d), v.Name)}
		case a == nil:
			return nil, &InputError{v.Name, fmt.Sprintf("%s holds no array of numbers under that name", d.name)}
		case v.Type.Known() && v.Type.DType != a.kind && !runtime.Rounds(a.kind, v.Type.DType):
			return nil, &InputError{v.Name, fmt.Sprintf("the array in %s is %s, want %s: convert it with numpy's astype", d.name, a.kind, v.Type.DType)}
		case !v.Type.Ranked:
			return nil, &InputError{v.Name, "its shape is unknown: export the model with the shapes of its inputs"}
		}
		if n, _ := onnx.Elements(a.shape); n == 0 {
			return nil, &InputError{v.Name, fmt.Sprintf("the array in %s is empty, its shape is %v", d.name, a.shape)}
		}
		x := binding{v: v, a: a, kind: a.kind}
		if runtime.Rounds(a.kind, v.Type.DType) {
			x.kind = v.Type.DType
			t.notes = append(t.notes, fmt.Sprintf("%s: %s in %s, rounded to the model's %s", v.Name, a.kind, d.name, x.kind))
		}
		b.list = append(b.list, x)
	}
	if len(b.list) == 0 {
		return nil, errNoInput
	}
	return b, t.shapeArrays(d, b)
}

func keysOf(d *dataset) string {
	keys := slices.Sorted(maps.Keys(d.arrays))
	if len(keys) > 8 {
		keys = append(keys[:8], "…")
	}
	if keys == nil {
		return "none"
	}
	return strings.Join(keys, ", ")
}

// shapeArrays decides the form of each array and settles free dimensions by them.
func (t *target) shapeArrays(d *dataset, b *boundArrays) error {
	// An array with an axis more than its input decides that all are steps. The
	// samples are those of the longest other array.
	for _, x := range b.list {
		if len(x.a.shape) == len(x.v.Type.Shape)+1 {
			b.bySteps = true
		}
	}
	for i := range b.list {
		x := &b.list[i]
		rank := len(x.v.Type.Shape)
		switch {
		case b.bySteps && len(x.a.shape) == rank+1:
			x.form = byStep
		case b.bySteps && len(x.a.shape) == rank, rank == 0 && len(x.a.shape) == 0:
			x.form = forAll
		case len(x.a.shape) != rank || rank == 0:
			return &InputError{x.v.Name, fmt.Sprintf("the array in %s has shape %v, want [samples%s], or [steps%s]", d.name, x.a.shape, tail(x.v, 1), tail(x.v, 0))}
		}
		if x.form != forAll {
			b.rows = max(b.rows, x.a.shape[0])
		}
	}
	if !b.bySteps {
		if err := t.findFixed(b); err != nil {
			return err
		}
	}
	for i := range b.list {
		x := &b.list[i]
		if x.form != forAll && x.a.shape[0] != b.rows {
			return &InputError{x.v.Name, fmt.Sprintf("the array in %s has %d rows, others have %d", d.name, x.a.shape[0], b.rows)}
		}
		skip := 0
		if x.form == byStep {
			skip = 1
		}
		for k := range x.v.Type.Shape {
			if x.form == bySample && k == 0 {
				continue
			}
			if !t.bind(x.v, k, x.a.shape[k+skip]) {
				return &InputError{x.v.Name, fmt.Sprintf("the array in %s has shape %v, want [samples%s], or [steps%s]", d.name, x.a.shape, tail(x.v, 1), tail(x.v, 0))}
			}
		}
	}
	for i := range b.list {
		x := &b.list[i]
		if x.form == bySample {
			if err := t.bindBatch(x.v); err != nil {
				return err
			}
		}
		var err error
		if x.shape, err = t.shape(x.v); err != nil {
			return err
		}
	}
	if b.bySteps {
		if t.batch > 1 {
			return fmt.Errorf("--batch %d: the arrays in %s have an axis of steps, each of which is a batch: leave --batch out", t.batch, d.name)
		}
		t.batch = 1
	}
	return nil
}

// findFixed tells arrays that every batch gets: of exactly the input's fixed shape,
// where others have more rows.
func (t *target) findFixed(b *boundArrays) error {
	for i := range b.list {
		x := &b.list[i]
		if x.form == forAll {
			continue
		}
		n, fixed := x.v.Type.Shape[0].Subst(t.dims).Int()
		if fixed && n == x.a.shape[0] && n < b.rows {
			x.form = forAll
		}
	}
	if !slices.ContainsFunc(b.list, func(x binding) bool { return x.form == bySample }) {
		return errNoInput
	}
	return nil
}

// sayShared notes which arrays every batch gets, and refuses labels among them: those are
// too few beside the samples, however well they fit a batch.
func (b *boundArrays) sayShared(t *target, labels, file string) error {
	for _, x := range b.list {
		switch {
		case x.form != forAll || len(x.a.shape) == 0:
		case x.v.Name == labels:
			return &InputError{labels, fmt.Sprintf("the array in %s has %d rows of labels, other arrays have %d: every batch would get the same", file, x.a.shape[0], b.rows)}
		default:
			t.notes = append(t.notes, fmt.Sprintf("%s: the same in every batch", x.v.Name))
		}
	}
	return nil
}

// tail writes the axes of an input from one on, each after a comma.
func tail(v *onnx.Value, from int) string {
	text := ""
	for _, d := range v.Type.Shape[min(from, len(v.Type.Shape)):] {
		text += ", " + d.String()
	}
	return text
}

// findLabels looks for the input that holds labels, so that those that count can be
// counted. Not every model has one.
func (t *target) findLabels(d *Data) error {
	if err := t.infer(); err != nil {
		return err
	}
	r := readGraph(t.m, t.known, t.lossValue(), t.inputs)
	for _, x := range r.meanings {
		if len(x.targets) == 0 || !x.input.Type.DType.IsInt() {
			continue
		}
		l := labels{input: x.input.Name, counted: r.compared(x)}
		l.ignored, l.ignores = ignoredBy(x)
		t.labels = append(t.labels, l)
	}
	if len(t.labels) == 1 { // of several, none is the one that the loss is a mean over
		d.Mapping.Labels, d.Mapping.Ignored, d.Mapping.Ignores = t.labels[0].input, t.labels[0].ignored, t.labels[0].ignores
	}
	if r.meanOfAll(r.loss) {
		for i := range t.labels {
			t.labels[i].ignores = false
		}
	}
	return nil
}

// arrayBatches makes the batches of a range of the rows.
func (t *target) arrayBatches(s *Source, set *dataset, b *boundArrays, d *Data, fixed []part, first, n int64, once bool) (*Batches, error) {
	out := Batches{batch: t.batch, samples: n, once: once, parts: slices.Clone(fixed)}
	inputs := maps.Clone(d.Mapping.Fill)
	for _, x := range b.list {
		p := part{name: x.v.Name, kind: x.kind, shape: x.shape}
		if x.form == forAll {
			inputs[p.name] = "the same"
			size, _ := onnx.Elements(x.shape)
			p.fixed = make([]byte, size*p.kind.Size())
			if err := x.read(p.fixed, 0); err != nil {
				return nil, fmt.Errorf("%s: key %q: %w", set.name, p.name, err)
			}
		} else {
			inputs[p.name] = "array"
			p.put = x.reader(set.name, first, bounds{runtime.IndexedBy(t.m, t.m.Graph.Value(p.name)), x.v.Name == d.Mapping.Labels, d.Mapping})
		}
		for _, l := range t.labels {
			if x.v.Name != l.input {
				continue
			}
			l.input, l.kind = p.name, p.kind
			if out.compared = append(out.compared, l); len(t.labels) == 1 {
				out.labels = l
			}
		}
		out.parts = append(out.parts, p)
	}
	shuffle := s.o.Shuffle && !once
	out.order = newOrder(n, shuffle, s.o.Seed)
	out.identity = Identity{Kind: kindNPZ, Files: set.files, Inputs: inputs, Batch: t.batch, Samples: n, Shuffle: shuffle}
	if shuffle {
		out.identity.Seed = s.o.Seed
	}
	what := "--data " + set.name
	if once && !s.o.Evaluate {
		what = "--val " + s.o.Val
	}
	return t.batches(out, what)
}

// A bounds says which integers an input may have: those that index something, those that the
// graph replaces first, and of labels what the loss ignores.
type bounds struct {
	by     runtime.Indexed
	labels bool
	m      Mapping
}

func (b bounds) hold(n int64) bool {
	switch {
	case b.by.Extent == 0 || n >= 0 && n < b.by.Extent || slices.Contains(b.by.Replaced, n):
		return true
	case !b.labels:
		return false
	case n < 0 && !b.m.Ignores:
		return true
	}
	return b.m.Ignores && n == b.m.Ignored
}

// read fills dst from a byte of the array on, with numbers of the input's type.
func (x *binding) read(dst []byte, at int64) error {
	if x.kind == x.a.kind {
		return x.a.read(dst, at)
	}
	n := int64(len(dst)) / x.kind.Size()
	wide := runtime.Tensor{Type: x.a.kind, Shape: []int64{n}, Data: make([]byte, n*x.a.kind.Size())}
	if err := x.a.read(wide.Data, at); err != nil {
		return err
	}
	rounded, err := wide.RoundedTo(x.kind)
	copy(dst, rounded.Data)
	return err
}

// reader reads rows of an array from first on, and checks integers that index
// something.
func (x *binding) reader(file string, first int64, allowed bounds) func([]byte, int64) error {
	row, size := x.a.row(), x.a.kind.Size()
	return func(dst []byte, sample int64) error {
		if err := x.read(dst, (first+sample)*row); err != nil {
			return fmt.Errorf("%s: key %q: %w", file, x.v.Name, err)
		}
		if allowed.by.Extent == 0 {
			return nil
		}
		for i := int64(0); i < row; i += size {
			if n := element(dst[i:], x.a.kind); !allowed.hold(n) {
				return fmt.Errorf("%s: key %q: %d at row %d, want 0 to %d", file, x.v.Name, n, first+sample, allowed.by.Extent-1)
			}
		}
		return nil
	}
}
