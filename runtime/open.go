package runtime

// How ONNX Runtime gets a model that is to run. It keeps names and metadata for as long as
// the session lives, half of its 5.5 kB a node, so it gets the model without the long ones
// (onnx.Model.EncodeLean), and errors get the names of nodes back. It gets the model whole
// where a profile names nodes, and where the file holds weights, which would be copied.
//
// Of what is left a quarter is the file as it was parsed. A large graph is therefore optimized in
// a session of its own, which saves it in ONNX Runtime's format, and runs in one of that:
// the same graph, with the same plan, of which nothing is kept as it was read.

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// An opener makes sessions of one model.
type opener struct {
	session func(ort.SessionOptions) (*ort.Session, error)
	// nodes are their names in the file, by place, where ONNX Runtime has others; nil where not.
	nodes func() []string
	// reads says that every session is made of the model's graph, which stays.
	reads bool
}

// leanSaves is at least what a session saves for each node, in bytes.
const leanSaves = 1 << 10

// opener opens the model as it is in memory; inFile says that its file is the same.
func (e *Engine) opener(m *onnx.Model, o *Options, inFile bool) opener {
	whole := func(so ort.SessionOptions) (*ort.Session, error) {
		if inFile {
			return e.Env.NewSession(m.Path, so)
		}
		data, err := m.Encode()
		if err != nil {
			return nil, err
		}
		return e.sessionOf(data, folderOf(m), so)
	}
	if o.Profile || o.ProfileAside || weightsInside(m.Graph) > leanSaves*int64(len(m.Graph.Nodes)) {
		return opener{session: whole, reads: !inFile}
	}
	var kept []byte // for sessions after the graph is given up, where no file has it
	lean := func(so ort.SessionOptions) (*ort.Session, error) {
		data := kept
		if m.Graph != nil {
			var err error
			if data, err = m.EncodeLean(); err != nil {
				return nil, err
			}
		} else if data == nil {
			return whole(so)
		}
		if !inFile {
			kept = data
		}
		if inOwnFormat(m, so) {
			if s, err := e.ownFormat(data, m, so); err == nil || errors.Is(err, ort.ErrMemory) {
				return s, err
			}
		}
		s, err := e.sessionOf(data, folderOf(m), so)
		if err != nil && m.Graph != nil && !errors.Is(err, ort.ErrMemory) {
			return whole(so) // its error speaks of the file's names
		}
		return s, err
	}
	if inFile { // which has the names, a MB or two that only an error asks for
		path, count := m.Path, len(m.Graph.Nodes)
		return opener{session: lean, nodes: func() []string { return namesIn(path, count) }}
	}
	names := namesOf(m.Graph)
	return opener{session: lean, nodes: func() []string { return names }}
}

// namesIn are the names of a file's nodes, if there are still so many.
func namesIn(path string, count int) []string {
	m, err := onnx.Load(path)
	if err != nil || len(m.Graph.Nodes) != count {
		return nil
	}
	defer m.Close()
	m.Graph.NameNodes()
	return namesOf(m.Graph)
}

// namesOf are the names of a graph's nodes, by place.
func namesOf(g *onnx.Graph) []string {
	names := make([]string, len(g.Nodes))
	for i, n := range g.Nodes {
		names[i] = n.Name()
	}
	return names
}

// ownFormatNodes is the least number of nodes for which a session is made of ONNX Runtime's own
// format: a session more, which of 15,500 takes 1.5 s, for 13 MB.
var ownFormatNodes = 4096 // a test has fewer

// inOwnFormat reports a model of which a session is made of ONNX Runtime's own format. Weights in
// files of their own would be in it.
func inOwnFormat(m *onnx.Model, o ort.SessionOptions) bool {
	return m.Graph != nil && o.Provider == ort.CPU && len(m.Graph.Nodes) >= ownFormatNodes &&
		!slices.ContainsFunc(m.Graph.Initializers, func(v *onnx.Value) bool { return v.Init.IsExternal() })
}

// ownFormat makes a session of a model that is encoded, as ONNX Runtime optimizes it, of its own format.
func (e *Engine) ownFormat(lean []byte, m *onnx.Model, o ort.SessionOptions) (*ort.Session, error) {
	dir, err := ort.TemporaryDir("remat-session-")
	if err != nil {
		return nil, err
	}
	defer ort.DropTemporary(dir)
	save := e.withoutIdle(o, m.Graph).WithConfig(ort.OwnFormat)
	save.Purpose, save.OptimizedPath = "optimize", filepath.Join(dir, "model.ort")
	if err := e.save(lean, folderOf(m), save); err != nil {
		return nil, err
	}
	o.Level, o.DisabledOptimizers, o.Dims = 0, nil, nil
	mapped, err := onnx.MapFile(save.OptimizedPath)
	if err != nil {
		return nil, err
	}
	return e.Env.NewSessionFromOwnFormat(mapped, func() { unix.Munmap(mapped) }, o)
}

// weightsInside is the size of the initializers that lie in the model itself, in bytes.
func weightsInside(g *onnx.Graph) (sum int64) {
	for _, v := range g.Initializers {
		if size, err := v.Init.ByteSize(); err == nil && !v.Init.IsExternal() {
			sum += size
		}
	}
	return sum
}

// failed finds the node that a run ended in, in what ONNX Runtime says of it.
var failed = regexp.MustCompile(`Name:'([^']+)'`)

// A namedError is an error of a run in the names of the model's file.
type namedError struct {
	error
	text string
}

func (e *namedError) Error() string { return e.text }
func (e *namedError) Unwrap() error { return e.error }

// named puts the names that nodes have in the file into an error of ONNX Runtime's.
func (o *opener) named(err error) error {
	if err == nil || o.nodes == nil || !failed.MatchString(err.Error()) {
		return err
	}
	names := o.nodes()
	text := failed.ReplaceAllStringFunc(err.Error(), func(found string) string {
		lean := failed.FindStringSubmatch(found)[1]
		for i, name := range names {
			if onnx.LeanName(i) == lean {
				return "Name:'" + name + "'"
			}
		}
		return found
	})
	return &namedError{err, text}
}
