package runtime

// Memory of a step, by one definition everywhere (bytes):
//
//	parameters  inputs that are parameters, and all initializers, unless they are on
//	            the device, in the session's memory
//	state       inputs that are optimizer state
//	feeds       all other inputs
//	session     what the session holds before the step
//	live peak   most that was handed out since the step's start
//	total peak  their sum
//	outputs     what the step returns (within live peak)
//
// Live bytes come from the counting allocator of the session, so they are what
// kernels ask for. Reserved is what that takes from the system: for what the session
// holds, the slab as far as the step used it, and the most that lay elsewhere. The
// arena's figures come from a second session, whose arena is set up for what the step
// asks for: see ortmodel.PlanArena. On CUDA all that is the device's memory.

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Memory is what a session and its steps take, in bytes; see the head of
// memory.go. What was predicted of it stands beside it in a report.
type Memory struct {
	ParameterBytes, StateBytes, FeedBytes, OutputBytes int64

	SessionBytes, LivePeakBytes, TotalPeakBytes int64
	// SlabBytes is the slab that steps run in, 0 where they have none; AstrayBytes the
	// most that a step allocated elsewhere against its places. See Session.Place.
	SlabBytes, AstrayBytes int64
	// ReservedBytes is the most that a step and the session had from the system.
	ReservedBytes int64
	// nil where they were not measured.
	ArenaPeakBytes, ArenaReservedBytes, RSSPeakBytes *int64
}

// Memory returns what was measured so far: the largest live peak of the steps,
// the outputs of the last.
func (s *Session) Memory() Memory {
	m := s.memory
	m.TotalPeakBytes = s.beside() + m.LivePeakBytes
	return m
}

// MemoryNow is what the session's allocator says between steps, in bytes.
type MemoryNow struct {
	// Live is what is handed out, outputs of the last step included, besides what the
	// session held before its first step.
	Live int64
	// Reserved is that, the session's, and what is kept for the next step.
	Reserved int64
	// LivePeak is the last step's.
	LivePeak int64
}

// Now says what the allocator holds between steps.
func (s *Session) Now() MemoryNow {
	st := s.ort.DeviceCounter().State()
	return MemoryNow{Live: st.Live - s.memory.SessionBytes, Reserved: st.Live + ort.Kept(), LivePeak: st.Peak - st.Base}
}

// count adds up inputs and initializers.
func (s *Session) count() {
	for _, in := range s.inputs {
		size := in.value.ByteSize()
		if in.lent || in.from == fromRoom {
			continue // counted where it lies
		}
		switch in.category {
		case parameterInput:
			s.memory.ParameterBytes += size
		case stateInput:
			s.memory.StateBytes += size
		default:
			s.memory.FeedBytes += size
		}
	}
	if s.Provider != ort.CPU {
		return // the session's
	}
	s.memory.ParameterBytes += s.held
}

// MeasureRSS notes the largest resident size that the process has had. It is
// called before MeasureArena, which adds a session to the process.
func (s *Session) MeasureRSS() error {
	n, err := PeakRSS()
	if err == nil {
		s.memory.RSSPeakBytes = &n
	}
	return err
}

// MeasureConstants adds to the session's bytes what ONNX Runtime computed ahead:
// initializers of the graph that it runs which the model does not have. On the CPU it
// keeps them outside the session's allocator, so the optimized graph is asked
// for once more, at the cost of a second session without steps.
func (s *Session) MeasureConstants() error {
	if s.Provider != ort.CPU {
		return nil
	}
	so := s.options.session(s.Provider)
	so.Purpose = "count constants"
	dump, err := s.engine.Dump(s.Model, so)
	if err != nil {
		return err
	}
	computed, err := step.Computed(dump.Graph, s.Model.Graph)
	s.memory.SessionBytes += computed
	return errors.Join(err, dump.Close())
}

// MeasureArena runs one step in a second session with ONNX Runtime's arena and
// notes what that says. The arena is set up as given, or, with nil, as suits
// what the last step asked for. With keep, next values go to memory aside, so the
// session's parameters stay as they are; without, they are written over as in a
// step, which is for a session that steps no more and saves as much memory. The
// outputs of the last step are released.
func (s *Session) MeasureArena(ctx context.Context, setup *ortmodel.ArenaSetup, keep bool) (err error) {
	asked := s.asked()
	defer func() { err = s.refused(err, asked) }()
	s.releaseOutputs()
	if setup == nil {
		counter := s.ort.DeviceCounter()
		events, err := counter.Events()
		if err != nil {
			return err
		}
		best, _ := s.planArena(counter.State().Base, requests(events))
		setup = &best
	}
	if left, need := Available(0), s.memory.LivePeakBytes; s.Provider == ort.CPU && need > left {
		return &MemoryError{What: "the step with an arena", Need: need, Available: left}
	}
	so := s.options.session(s.Provider)
	so.Allocator, so.Purpose = ort.OwnArena, "run with an arena"
	so.Arena = ort.ArenaConfig{
		AsRequested: setup.Strategy == ortmodel.AsRequested,
		FirstChunk:  setup.FirstChunk, MaxExtend: setup.MaxExtend, MaxDead: setup.MaxDead,
	}
	if s.options.ProfileAside {
		dir, err := ort.TemporaryDir("remat-profile-")
		if err != nil {
			return err
		}
		defer ort.DropTemporary(dir)
		so.ProfilePrefix = filepath.Join(dir, "p")
	}
	second, err := s.open.session(so)
	if err != nil {
		return err
	}
	defer second.Close()
	var aside []*ort.Value
	defer s.dropSums()
	defer func() {
		for _, v := range aside {
			v.Close()
		}
	}()
	b, err := s.bind(second)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := s.takeSums(second); err != nil {
		return err
	}
	if err := s.bindOutputs(b, func(in *input) (*ort.Value, error) {
		if !in.inPlace {
			return nil, nil
		}
		if !keep {
			return in.value, nil
		}
		v, err := s.besides(in.value)
		if err == nil {
			aside = append(aside, v)
		}
		return v, err
	}); err != nil {
		return err
	}
	if err := second.Run(ctx, b, ""); err != nil {
		return err
	}
	st, err := second.DeviceStats()
	if err != nil {
		return err
	}
	s.memory.ArenaPeakBytes, s.memory.ArenaReservedBytes = &st.MaxInUse, &st.Reserved
	if s.options.ProfileAside {
		s.aside, err = second.EndProfiling()
	}
	return err
}

// besides is a tensor like another where that lies: on a device the step writes
// there as it does without it.
func (s *Session) besides(v *ort.Value) (*ort.Value, error) {
	if v.OnHost() {
		return s.engine.Env.NewTensor(v.Type, v.Shape)
	}
	return s.ort.NewDeviceTensor(v.Type, v.Shape)
}

// planArena sets an arena up for a step. On the CPU the session holds so many bytes
// beside it; on a device, its constants lie in it.
func (s *Session) planArena(base int64, step []ortmodel.Request) (ortmodel.ArenaSetup, ortmodel.ArenaUse) {
	if s.Provider == ort.CPU {
		return ortmodel.PlanArena(base, step, false)
	}
	held := s.memory.SessionBytes + ortmodel.MostWaste*int64(s.constants)
	constants := ortmodel.Request{ID: len(step), Bytes: held, Alloc: true, Kept: true}
	return ortmodel.PlanArena(0, append([]ortmodel.Request{constants}, step...), true)
}

// requests numbers the blocks of the events from 0.
func requests(events []ort.Event) []ortmodel.Request {
	out := make([]ortmodel.Request, 0, len(events))
	block := map[uint64]int{}
	for _, e := range events {
		id, known := block[e.ID]
		if !known && !e.Alloc {
			continue // made before the step
		}
		if !known {
			id = len(block)
			block[e.ID] = id
		}
		out = append(out, ortmodel.Request{ID: id, Bytes: e.Bytes, Alloc: e.Alloc})
	}
	return out
}

// PeakRSS is the largest resident size that this process has had, in bytes.
func PeakRSS() (int64, error) { return procStatus("VmHWM:") }

// RSS is the process's resident size, in bytes.
func RSS() (int64, error) { return procStatus("VmRSS:") }

func procStatus(key string) (int64, error) {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	kb, ok := field(string(data), key)
	if !ok {
		return 0, errors.New("/proc/self/status: no " + key)
	}
	return kb << 10, nil
}
