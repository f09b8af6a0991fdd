package runtime

// What cuDNN borrows for a convolution or a recurrence: it alone knows, on the device.
//
//	node ─▶ a model of it alone ─▶ session on the device ─▶ one run
//	                   bytes asked for − outputs and what else is known = workspace
//
// It chooses by heuristics from shapes, types and attributes, not by trials of its own, so
// another session of an equal node borrows as much. Each kind of node is asked once by an
// engine.

import (
	"context"
	"fmt"
	"slices"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/runtime/ort"
)

// A GPU says which device sessions on CUDA take, and how it computes.
type GPU struct {
	Number int
	TF32   bool
}

// NoteWorkspaces has the nodes of a typed model note what they borrow for a library of the
// device. Without a device, notes that are there stay; a rehearsal, whose libraries borrow
// nothing, drops them. A node that could not be asked has none.
func (e *Engine) NoteWorkspaces(m *onnx.Model, gpu GPU) {
	if !e.HasCUDA() {
		return
	}
	borrows := !e.Rehearsed() || e.device.Workspace() > 0 // else as every rehearsal of a user's
	for _, n := range m.Graph.Nodes {
		if k, ok := step.CUDA.Scratch(n); !ok || k == nil || len(k.Library) == 0 {
			continue
		}
		traits.ForgetWorkspace(n)
		if !borrows {
			continue
		}
		if w, ok := e.workspace(m, n, gpu); ok {
			traits.NoteWorkspace(n, w.borrowed, w.held)
		}
	}
}

// A workspace is what cuDNN borrows for a node in each step, and what a session keeps for it,
// in bytes.
type workspace struct{ borrowed, held int64 }

// workspace asks the device, unless it was asked of an equal node.
func (e *Engine) workspace(m *onnx.Model, n *onnx.Node, gpu GPU) (workspace, bool) {
	e.workspaces.Lock()
	defer e.workspaces.Unlock()
	key := fmt.Sprint(n.Fingerprint(), gpu)
	if w, ok := e.workspaces.known[key]; ok {
		return w, w.borrowed >= 0
	}
	w, err := e.askWorkspace(m, n, gpu)
	if err != nil {
		w.borrowed = -1
	}
	if e.workspaces.known == nil {
		e.workspaces.known = map[string]workspace{}
	}
	e.workspaces.known[key] = w
	return w, err == nil
}

// askWorkspace runs a session of the node alone.
func (e *Engine) askWorkspace(m *onnx.Model, n *onnx.Node, gpu GPU) (w workspace, err error) {
	single, expected, err := alone(m, n)
	if err != nil {
		return w, err
	}
	data, err := single.Encode()
	if err != nil {
		return w, err
	}
	s, err := e.Env.NewSessionFromBytes(data, ort.SessionOptions{
		Provider: ort.CUDA, Device: gpu.Number, TF32: gpu.TF32, Threads: 1, Allocator: ort.Counting, Purpose: "ask cuDNN",
	})
	if err != nil {
		return w, err
	}
	defer s.Close()
	w.held = s.DeviceCounter().State().Live
	asked, err := asksFor(s)
	if err != nil {
		return w, err
	}
	for _, bytes := range expected {
		if i := slices.Index(asked, bytes); i >= 0 {
			asked = slices.Delete(asked, i, i+1)
		} else if bytes > 0 {
			return w, fmt.Errorf("%s: %d bytes were not asked for", n.Label(), bytes)
		}
	}
	switch len(asked) {
	case 0:
		return w, nil
	case 1:
		w.borrowed = asked[0]
		return w, nil
	}
	return w, fmt.Errorf("%s: %d requests more than are known", n.Label(), len(asked))
}

// alone is a model of a node, with what its kernel allocates beside a workspace.
func alone(of *onnx.Model, n *onnx.Node) (*onnx.Model, []int64, error) {
	m := onnx.NewModel("alone", of.Opset(""))
	if d := n.Domain(); d != "" {
		m.SetOpset(d, of.Opset(d))
	}
	inputs := make([]*onnx.Value, len(n.Inputs))
	for i, v := range n.Reads() {
		if _, ok := v.Type.Bytes(); !ok {
			return nil, nil, fmt.Errorf("%s: size of %q not known", n.Label(), v.Name)
		}
		inputs[i] = m.Graph.AddInput(fmt.Sprint("in", i), v.Type)
	}
	c := m.Graph.CloneNode(n, inputs, func(name string) string { return name })
	m.Graph.Append(c)
	var expected []int64
	for i, o := range n.Returns() {
		bytes, ok := o.Type.Bytes()
		if !ok {
			return nil, nil, fmt.Errorf("%s: size of %q not known", n.Label(), o.Name)
		}
		expected = append(expected, bytes)
		m.Graph.AddOutput(c.Out(i))
	}
	k, _ := step.CUDA.Scratch(c) // whose weights are no constants
	for i, bytes := range k.Sizes {
		if !slices.Contains(k.Library, i) {
			expected = append(expected, bytes)
		}
	}
	return m, expected, nil
}

// asksFor are the sizes that the session asks the device for, in its second run.
func asksFor(s *ort.Session) (sizes []int64, err error) {
	for range 2 {
		if sizes, err = runAsksFor(s); err != nil {
			return nil, err
		}
	}
	return sizes, nil
}

func runAsksFor(s *ort.Session) ([]int64, error) {
	b, err := s.NewBinding()
	if err != nil {
		return nil, err
	}
	defer b.Close()
	for _, in := range s.Inputs {
		v, err := s.NewDeviceTensor(in.Type, in.Shape)
		if err != nil {
			return nil, err
		}
		defer v.Close()
		if err := b.BindInput(in.Name, v); err != nil {
			return nil, err
		}
	}
	for _, out := range s.Outputs {
		if err := b.BindOutputToDevice(out.Name, ort.CUDA, s.Options().Device); err != nil {
			return nil, err
		}
	}
	counter := s.DeviceCounter()
	counter.Mark(true)
	if err := s.Run(context.Background(), b, "workspace"); err != nil {
		return nil, err
	}
	events, err := counter.Events()
	if err != nil {
		return nil, err
	}
	outputs, err := b.Outputs()
	for _, v := range outputs {
		v.Value.Close()
	}
	var sizes []int64
	for _, e := range events {
		if e.Alloc {
			sizes = append(sizes, e.Bytes)
		}
	}
	return sizes, err
}
