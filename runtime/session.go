package runtime

// A session with its inputs bound, ready for steps.
//
//	file or model ─▶ inputs: feeds, mapped parameters, random ─▶ Binding
//	                 outputs: left to ONNX Runtime, but P.new ─▶ bound onto P
//
// On CUDA the inputs lie in device memory, put there once; outputs come back
// to the host.

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A Session runs steps of one model. It is for one goroutine at a time.
type Session struct {
	Model    *onnx.Model // without its graph after Spare
	Roles    Roles
	Provider ort.Provider

	engine  *Engine
	options Options
	open    opener
	ort     *ort.Session
	binding *ort.Binding
	// bound is, for each output, the input that it becomes the value of, if any; nil
	// while they are not bound.
	bound   []target
	next    map[string]target // by the output, see targets
	held    int64             // by initializers, in bytes
	inputs  []*input
	byName  map[string]*input
	files   mappings
	shared  []recipe
	memory  Memory
	looked  time.Time // when left was asked for
	left    int64     // memory that a step may take
	steps   int       // runs so far, those before Resume included
	began   int       // runs before this session's first
	torn    int       // the step that ended early, and left values of two steps; 0: none
	rated   bool      // the first run's scalars are not those of the options
	last    []Output
	scaler  *Scaler
	copier  copier
	profile string // folder of the profile, if any
	aside   *ort.Profile
	owned   bool // the model is closed with the session
	dims    map[string]int64
	load    LoadStages
	placed  bool // see Place
	// allocated is what the session holds of its allocator before a step, in bytes.
	allocated int64
	constants int // of the model, as it was opened
	carried   carried
	way       step.Outputs
	sums      []*sum
}

// LoadStages are the process's resident bytes once the session's own session of ONNX
// Runtime is made, and once its inputs have their values; 0 where they are not known.
type LoadStages struct{ Session, Feeds int64 }

// Load says how large the process was as the session was made ready.
func (s *Session) Load() LoadStages { return s.load }

// An input is a graph input with its value.
type input struct {
	value    *ort.Value
	info     *onnx.Value
	from     source
	category category
	// limit is what integers that nobody fed lie below, 0 where the graph does not say.
	limit int64
	// indexes is what integers that were fed index as they are.
	indexes Indexed
	// next is the output that becomes the input's value, "" if none; inPlace
	// says that it is written over it.
	next    string
	inPlace bool
	// borrowed says that the value lies in the feed's memory, or in memory that
	// sessions share, which is not the session's to write.
	borrowed bool
	// lent says that the value is another session's, which closes it.
	lent bool
}

// OpenFile opens a model file.
func (e *Engine) OpenFile(path string, o Options) (*Session, error) {
	m, err := onnx.Load(path)
	if err != nil {
		return nil, err
	}
	s, err := e.OpenOwned(m, o)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return s, nil
}

// OpenLoaded is OpenFile for a model that was loaded from its file and not changed
// since, which has to outlive the session; the session works on a copy.
func (e *Engine) OpenLoaded(m *onnx.Model, o Options) (*Session, error) {
	own, err := m.Clone()
	if err != nil {
		return nil, err
	}
	return e.OpenOwned(own, o)
}

// OpenOwned is OpenLoaded without a copy: the session, if there is one, owns the model, and
// closes it.
func (e *Engine) OpenOwned(m *onnx.Model, o Options) (*Session, error) {
	table := carriedBy(m)
	inFile := !seed(m, o.Seed+o.Draws, o.From.Runs) && !m.Amended
	s, err := e.newSession(m, o, e.opener(m, &o, inFile), table)
	if err != nil {
		return nil, err
	}
	s.owned = true
	return s, nil
}

// Open opens a model as it is in memory, or a copy with seeds if it draws random numbers; the
// caller closes it after the session.
func (e *Engine) Open(m *onnx.Model, o Options) (*Session, error) {
	if len(traits.Drawing(m.Graph)) == 0 {
		return e.newSession(m, o, e.opener(m, &o, false), carriedBy(m))
	}
	own, err := m.Clone()
	if err != nil {
		return nil, err
	}
	table := carriedBy(own)
	seed(own, o.Seed+o.Draws, o.From.Runs)
	s, err := e.newSession(own, o, e.opener(own, &o, false), table)
	if err != nil {
		return nil, errors.Join(err, own.Close())
	}
	s.owned = true
	return s, nil
}

// seed gives every node that draws random numbers and has no seed one made from
// its name, so that two sessions draw the same numbers, moves all seeds by a
// number other than zero, and those that count runs by the runs before. It reports
// whether it changed any.
func seed(m *onnx.Model, by uint64, runs int) bool {
	nodes := traits.Drawing(m.Graph)
	changed := traits.FixSeeds(nodes) > 0
	if by != 0 {
		traits.ShiftSeeds(nodes, by)
		changed = len(nodes) > 0
	}
	return traits.AdvanceSeeds(nodes, runs) > 0 || changed
}

func (e *Engine) newSession(m *onnx.Model, o Options, open opener, table carried) (*Session, error) {
	s := &Session{Model: m, engine: e, options: o, open: open, byName: map[string]*input{}, carried: table}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// start makes the session: what the inputs will be, the library's session, their values, and
// the binding.
func (s *Session) start() (err error) {
	if s.Provider, err = s.engine.Provider(s.options.Provider, s.options.Device); err != nil {
		return err
	}
	asked := s.asked()
	defer func() { err = s.refused(err, asked) }()
	values, err := s.prepare()
	if err != nil {
		return err
	}
	if err := s.create(); err != nil {
		return err
	}
	if s.options.Made != nil {
		if err := s.options.Made(s); err != nil {
			return err
		}
	}
	if err := s.supply(values); err != nil {
		return err
	}
	s.binding, err = s.bind(s.ort)
	return err
}

// prepare checks the model, and finds its roles and where each input's value comes from, before
// any memory is taken.
func (s *Session) prepare() (*feeds, error) {
	if err := s.Model.Check(); err != nil {
		return nil, err
	}
	values, err := newFeeds(s.Model, &s.options)
	if err != nil {
		return nil, err
	}
	s.dims, s.constants = values.dims, len(s.Model.Graph.Initializers)
	if s.Provider == ort.CUDA {
		if err := NoKernel(s.Model.Graph); err != nil {
			return nil, err
		}
	}
	if s.Provider == ort.CUDA && !s.engine.Rehearsed() { // which computes nothing
		if err := shortProducts(s.Model, s.dims); err != nil {
			return nil, err
		}
	}
	if s.scaler = newScaler(s.Model.Graph, &s.options); s.scaler != nil {
		s.options.LossScale = s.scaler.Scale
	}
	if err := s.resume(); err != nil {
		return nil, err
	}
	if s.Roles, err = FindRoles(s.Model, s.options.Roles); err != nil {
		return nil, err
	}
	if err := s.plan(values); err != nil {
		return nil, err
	}
	if err := s.markInPlace(); err != nil { // may open a session too, whose remains would lie among this one's
		return nil, err
	}
	ort.Trim()
	s.held, err = step.Held(s.Model.Graph, func(v *onnx.Value) bool { return s.byName[v.Name] != nil })
	s.next = s.targets()
	return values, err
}

// create makes the library's session.
func (s *Session) create() (err error) {
	so := s.options.session(s.Provider)
	so.Allocator = ort.Counting
	if s.options.Profile {
		if s.profile, err = ort.TemporaryDir("remat-profile-"); err != nil {
			return err
		}
		so.ProfilePrefix = filepath.Join(s.profile, "p")
	}
	if s.ort, err = s.open.session(so); err != nil {
		return missingKernel(s.Model.Graph, err)
	}
	if err := s.placeAsCarried(); err != nil {
		return err
	}
	ort.Trim()
	s.load.Session, _ = RSS()
	s.allocated = s.ort.DeviceCounter().State().Live
	s.memory.SessionBytes = s.allocated
	return nil
}

// supply gives the inputs their values, within the memory that the options leave.
func (s *Session) supply(values *feeds) error {
	for _, in := range s.inputs {
		if err := s.fill(in, values); err != nil {
			return err
		}
	}
	if err := s.copier.trim(); err != nil {
		return err
	}
	s.count()
	if err := s.limited(); err != nil {
		return err
	}
	if within := cmp.Or(s.options.Within, s.options.MemoryLimit); within > 0 && s.Provider == ort.CPU {
		ort.Within(max(1, within-s.beside()+s.memory.SessionBytes))
	}
	s.load.Feeds, _ = RSS()
	return nil
}

// Spare gives the model's graph up, and what else leads to it: from Options.Made on a
// session takes steps without. Model has metadata alone then, and what asks ONNX Runtime for
// its graph has come before: MeasureConstants, Bound, Fallback. A graph of which a second
// session is made stays.
func (s *Session) Spare() {
	for _, in := range s.inputs {
		in.info = in.info.Apart()
	}
	if !s.open.reads {
		s.Model.GiveUpGraph()
	}
}

// plan lists the inputs, and checks that each can have a value, before any
// memory is taken.
func (s *Session) plan(values *feeds) error {
	g := s.Model.Graph
	categories := categorize(s.Roles, g, values.located, values.asParameter)
	for _, v := range g.Inputs {
		in := &input{info: v, category: categories[v.Name], next: s.Roles.New[v.Name]}
		switch {
		case s.options.Rooms[v.Name].Data != nil:
			in.from = fromRoom
		case s.options.Share.lends(v) != nil:
			in.from, in.category = fromSession, parameterInput
		case s.options.Own[v.Name].Data != nil:
			in.from = fromOwn
		case values.has(v.Name):
			in.from, in.indexes = fromFeed, IndexedBy(s.Model, v)
		case v.Init != nil:
			continue // its initializer is the default
		case values.located[v.Name].File != "":
			in.from = fromFile
		case values.located[v.Name].Known() && v.Type.DType == onnx.Float32:
			in.from = fromSeed
		case IsTrainingScalar(v):
			in.from = fromScalar
		case categories[v.Name] == stateInput:
			in.from = fromZero
		default:
			in.from, in.limit = fromRandom, FeedLimit(s.Model, v)
		}
		if _, err := values.shape(v); err != nil {
			return err
		}
		s.inputs = append(s.inputs, in)
		s.byName[v.Name] = in
	}
	return nil
}

// markInPlace decides which next values are written over their inputs.
func (s *Session) markInPlace() (err error) {
	if s.way, err = step.OutputsOf(s.Model, s.options.Outputs); err != nil || s.way == step.Returned {
		return err
	}
	if s.way == step.Rows && s.Provider != ort.CPU {
		return ErrRowsOnDevice
	}
	next := map[string]string{}
	for _, in := range s.inputs {
		if in.next != "" {
			next[in.info.Name] = in.next
		}
	}
	var executed *onnx.Model
	run := func() (*onnx.Graph, error) {
		if executed == nil {
			so := s.options.session(s.Provider)
			so.Purpose = "find updates in place"
			if executed, err = s.engine.Dump(s.Model, so); err != nil {
				return nil, err
			}
		}
		return executed.Graph, nil
	}
	safe, err := inPlace(s.Model.Graph, next, s.way, s.options.Level, run)
	if err == nil {
		s.sums, err = summed(s.Model.Graph, s.Roles, s.way, s.options.Level, run)
	}
	if executed != nil {
		err = errors.Join(err, executed.Close())
	}
	for name := range next {
		s.byName[name].inPlace = safe[name]
	}
	return err
}

// fill gives an input its value.
func (s *Session) fill(in *input, values *feeds) error {
	v := in.info
	if in.from == fromSession {
		in.value, in.lent = s.options.Share.lends(v).value, true
		return nil
	}
	shape, err := values.shape(v)
	if err != nil {
		return err
	}
	given, env := values.given[v.Name], s.engine.Env
	dtype := v.Type.DType
	if in.from == fromFeed {
		dtype = given.Type
	}
	t := ortType(dtype)
	_, stepped := s.options.Data[v.Name]
	switch {
	case in.from == fromFile:
		size, err := ort.ByteSize(t, shape)
		if err != nil {
			return &FeedError{v.Name, err.Error()}
		}
		data, err := s.files.slice(s.Model, v.Name, values.located[v.Name], size)
		if err != nil {
			return err
		}
		if in.value, err = s.hold(in, data, t, shape); err != nil {
			return &FeedError{v.Name, err.Error()}
		}
	case in.from == fromOwn:
		own := s.options.Own[v.Name]
		if err := values.check(v, own); err != nil {
			return err
		}
		if in.value, err = s.hold(in, own.Data, t, own.Shape); err != nil {
			return &FeedError{v.Name, err.Error()}
		}
	case in.from == fromRoom:
		room := s.options.Rooms[v.Name]
		if err := values.check(v, room); err != nil {
			return err
		}
		if in.value, err = env.TensorOver(room.Data, t, room.Shape); err != nil {
			return &FeedError{v.Name, err.Error()}
		}
	case in.from == fromFeed && in.next == "" && !stepped && ort.Aligned(given.Data):
		// The feed's own memory, which nothing writes.
		if in.value, err = env.TensorOver(given.Data, t, shape); err != nil {
			return &FeedError{v.Name, err.Error()}
		}
		in.borrowed = true
	case s.isShared(in):
		err := s.share(in, t, shape, values.located[v.Name], func(data []byte) { s.make(in, dtype, data, values) })
		if err != nil {
			return &FeedError{v.Name, err.Error()}
		}
	default:
		if in.value, err = newTensor(env, t, shape); err != nil {
			return &FeedError{v.Name, err.Error()}
		}
		switch in.from {
		case fromFeed:
			copy(in.value.Bytes(), given.Data)
		case fromScalar:
			s.options.setScalar(v.Name, in.value.Bytes(), 1)
		default:
			s.make(in, dtype, in.value.Bytes(), values)
		}
	}
	return s.toDevice(in)
}

// hold gives an input that has its value in a file's mapping that memory, or, where a
// step writes it and it is not aligned, memory of its own. A kernel that sums the
// elements up to an aligned address apart has other last bits at another address, and
// so has a training that goes on from a state, in which a tensor lies elsewhere. Of
// parameters of one value, which an exporter writes once, each has its own memory too:
// they are the same only until the first update.
func (s *Session) hold(in *input, data []byte, t ort.DType, shape []int64) (*ort.Value, error) {
	alone := s.files.take(data)
	if alone && (in.next == "" || ort.Aligned(data)) {
		return s.engine.Env.TensorOver(data, t, shape)
	}
	v, err := newTensor(s.engine.Env, t, shape)
	if err != nil {
		return nil, err
	}
	copy(v.Bytes(), data)
	if alone {
		pageOut(data)
	}
	return v, nil
}

// pageOut lets the system take the whole pages of memory that is not read again. Their
// content stays.
func pageOut(data []byte) {
	page := uintptr(os.Getpagesize())
	start := -uintptr(unsafe.Pointer(unsafe.SliceData(data))) % page
	if size := uintptr(len(data)); size >= start+page {
		_ = unix.Madvise(data[start:start+(size-start)/page*page], unix.MADV_PAGEOUT)
	}
}

// make writes the value of an input that is made from a seed; zeros stay.
func (s *Session) make(in *input, dtype onnx.DType, data []byte, values *feeds) {
	v := in.info
	switch in.from {
	case fromSeed:
		at := values.located[v.Name]
		at.Fill(data, at.Seed, v.Name, 0)
	case fromRandom:
		randomTensor(v, dtype, data, s.options.Seed, in.limit)
	}
}

// toDevice moves an input's value to the session's device, unless a node of the host reads
// it.
func (s *Session) toDevice(in *input) error {
	if s.readsOnHost(in) {
		return nil
	}
	host := in.value
	device, err := s.ort.NewDeviceTensor(host.Type, host.Shape)
	if err != nil {
		return fmt.Errorf("input %q: %w", in.info.Name, err)
	}
	in.value, in.borrowed = device, false
	return errors.Join(s.copier.copy(s, device, host), host.Close())
}

// readsOnHost says where the session reads an input. ONNX Runtime copies a value that lies
// elsewhere as it is bound, and never sees what is written there afterwards.
func (s *Session) readsOnHost(in *input) bool {
	return s.Provider == ort.CPU || slices.ContainsFunc(s.ort.Inputs, func(i ort.Info) bool { return i.Name == in.info.Name && i.Host })
}

// bindLent binds the values of another session that this one reads elsewhere than they lie
// anew, as they may have changed.
func (s *Session) bindLent() error {
	for _, in := range s.inputs {
		if in.lent && in.value.OnHost() != s.readsOnHost(in) {
			if err := s.binding.BindInput(in.info.Name, in.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// bind makes the binding of a session's inputs.
func (s *Session) bind(session *ort.Session) (*ort.Binding, error) {
	b, err := session.NewBinding()
	if err != nil {
		return nil, err
	}
	for _, in := range s.inputs {
		if err := b.BindInput(in.info.Name, in.value); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

// Close releases everything, outputs too: values before what made and filled them.
func (s *Session) Close() error {
	s.releaseOutputs()
	err := s.binding.Close()
	for _, in := range s.inputs {
		if !in.lent {
			err = errors.Join(err, in.value.Close())
		}
	}
	s.inputs = nil
	err = errors.Join(err, s.copier.close())
	for _, r := range s.shared {
		err = errors.Join(err, s.engine.shared.give(r))
	}
	s.shared = nil
	if s.ort != nil {
		err = errors.Join(err, s.ort.Close())
	}
	if s.profile != "" {
		err = errors.Join(err, ort.DropTemporary(s.profile))
	}
	err = errors.Join(err, s.files.close())
	if s.owned {
		s.owned = false
		err = errors.Join(err, s.Model.Close())
	}
	return err
}

// Drawn are the inputs whose values were drawn at random, as nothing gave any.
func (s *Session) Drawn() []string {
	var names []string
	for _, in := range s.inputs {
		if in.from == fromRandom {
			names = append(names, in.info.Name)
		}
	}
	return names
}

// Dims are the numbers of the free dimensions, as given and as the feeds have
// them.
func (s *Session) Dims() map[string]int64 { return s.dims }

// Last returns the outputs of the last step, valid until the next, those too that
// stayed on the device. A rehearsal has none.
func (s *Session) Last() ([]Output, error) {
	if s.rehearsed() {
		return nil, ErrRehearsed
	}
	for i := range s.last {
		if o := &s.last[i]; o.Err == nil && !o.value.OnHost() {
			if err := s.read(o); err != nil {
				return nil, err
			}
		}
	}
	return s.last, nil
}

// Threads is how many threads the session runs with.
func (s *Session) Threads() int { return s.options.threads() }

// A copier makes its session when one is needed, and notes the most that it has copied, in
// bytes: its arena keeps that much.
type copier struct {
	made *ort.Copier
	held int64
}

func (c *copier) copy(s *Session, to, from *ort.Value) (err error) {
	if c.made == nil {
		if c.made, err = s.engine.Env.NewCopier(s.Provider, s.options.Device); err != nil {
			return err
		}
	}
	c.held = max(c.held, to.ByteSize())
	return c.made.Copy(to, from)
}

// trim closes what holds as much as a step might miss.
func (c *copier) trim() error {
	if c.held < worthAsking {
		return nil
	}
	return c.close()
}

func (c *copier) close() error {
	if c.made == nil {
		return nil
	}
	err := c.made.Close()
	*c = copier{}
	return err
}
