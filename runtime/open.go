package runtime

// How ONNX Runtime gets a model that is to run. It keeps names and metadata for as long as
// the session lives, half of its 5.5 kB a node, so it gets the model without the long ones
// (onnx.Model.EncodeLean), and errors get the names of nodes back. It gets the model whole
// where a profile names nodes, and where the file holds weights, which would be copied.

import (
	"errors"
	"regexp"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// An opener makes sessions of one model.
type opener struct {
	session func(ort.SessionOptions) (*ort.Session, error)
	// nodes are their names in the file, by place, where ONNX Runtime has others.
	nodes []string
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
		s, err := e.sessionOf(data, folderOf(m), so)
		if err != nil && m.Graph != nil && !errors.Is(err, ort.ErrMemory) {
			return whole(so) // its error speaks of the file's names
		}
		return s, err
	}
	names := make([]string, len(m.Graph.Nodes))
	for i, n := range m.Graph.Nodes {
		names[i] = n.Name()
	}
	return opener{session: lean, nodes: names}
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
	if err == nil || o.nodes == nil {
		return err
	}
	text := failed.ReplaceAllStringFunc(err.Error(), func(found string) string {
		lean := failed.FindStringSubmatch(found)[1]
		for i, name := range o.nodes {
			if onnx.LeanName(i) == lean {
				return "Name:'" + name + "'"
			}
		}
		return found
	})
	return &namedError{err, text}
}
