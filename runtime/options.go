package runtime

import (
	goruntime "runtime"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/runtime/ort"
)

// Options say how a model is opened and what its inputs are. The zero value
// runs at level 0, with one thread per core, on CUDA where it works.
type Options struct {
	Level    int // ONNX Runtime's optimization level: 0, 1, 2 or 99
	Threads  int // 0: one per core
	Provider ort.Provider
	Device   int
	// TF32 lets a GPU's products of float32 round their factors to 10 bits of mantissa.
	TF32 bool
	// Dims are numbers for free dimensions, by name.
	Dims map[string]int64

	// Feed holds values by input name; one for a name that is no input is an
	// error. Feeds holds those of an archive, by NAME, "in:NAME" or
	// "param:NAME"; other keys are ignored. Data holds values whose leading
	// axis is the step; the steps begin again when it ends.
	Feed, Feeds, Data map[string]Tensor
	Seed              uint64
	// Draws moves the seeds of random operators besides Seed, which unfed inputs have
	// too: ranks of one training draw different numbers from equal parameters.
	Draws uint64
	// Own holds values by input name whose memory the session takes as it is, and
	// writes where the graph updates them: that of a state file, mapped privately. What
	// is updated and not aligned (ort.Aligned) is copied instead. The memory outlives
	// the session. It wins over all other values.
	Own map[string]Tensor
	// Rooms are like Own, in memory that the caller counts, and has other values in at
	// other times. They win over all other values too.
	Rooms map[string]Tensor
	// Share is a session whose parameters and state are this one's inputs of the
	// same name and type, in the same memory: what a step of the one writes, the
	// other reads. So are those of the session that it shares with. It is closed after
	// this one, and they take turns.
	Share *Session
	// From is what ran before this session's first run, which goes on from there: its
	// number, its loss scale, and the numbers that Dropout draws. Other operators that
	// draw begin anew.
	From Progress
	// LR and LossScale are fed to inputs of those names (lr, loss_scale).
	// A graph that says found_inf starts with LossScale, 0 for
	// DefaultLossScale, and Scaling says how it goes on.
	LR, LossScale float64
	Scaling       Scaling
	// Roles override those of the file.
	Roles *Roles
	// Outputs says whether next values are written over their inputs, where that is
	// safe, or returned as values of their own; "": as the file says.
	Outputs step.Outputs

	// MemoryLimit is the most bytes that parameters, state, feeds, session and a step
	// may take together, on the CPU; 0: what the system can give.
	MemoryLimit int64
	// Within is how many bytes the same should take together, with what is kept for
	// reuse from step to step, where a step needs no more; 0: MemoryLimit. It refuses
	// nothing, and is for a process with one session.
	Within int64

	// Made, if any, is called once ONNX Runtime has the model and before inputs take memory:
	// it is for what takes memory itself, and needs the graph. See Session.Spare.
	Made func(*Session) error

	Trace   bool // record every allocation of each step
	Profile bool // measure every node: Session.Profile
	// ProfileAside measures every node of MeasureArena's step: Session.Aside.
	ProfileAside bool
	// MemPattern turns ONNX Runtime's memory pattern on.
	MemPattern bool
	// Disabled names optimizers of ONNX Runtime that are left out; Config adds
	// session configuration entries.
	Disabled []string
	Config   map[string]string
	// Purpose says what the session is for, to who watches.
	Purpose string
}

func (o *Options) threads() int {
	if o.Threads > 0 {
		return o.Threads
	}
	return goruntime.NumCPU()
}

// session is the options of the session that steps run in.
func (o *Options) session(p ort.Provider) ort.SessionOptions {
	return ort.SessionOptions{
		Purpose: o.Purpose, Level: o.Level, Threads: o.threads(), Provider: p, Device: o.Device, TF32: o.TF32, Dims: o.Dims, MemPattern: o.MemPattern,
		DisabledOptimizers: o.Disabled, Config: o.Config,
	}
}
