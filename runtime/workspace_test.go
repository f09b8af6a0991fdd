package runtime

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
	"github.com/onnx-remat/remat/runtime/ort/nulldevice"
)

// TestWorkspaceOnTheDevice: what the device's cuDNN asks for a convolution is noted in the
// node, is what a step takes, and counts until the node is another; a rehearsal, whose cuDNN asks for nothing, has
// no notes.
func TestWorkspaceOnTheDevice(t *testing.T) {
	onlyRehearsed(t)
	const workspace, y, z = 12345, 2 * 4 * 8 * 8 * 4, 2 * 2 * 8 * 8 * 4
	withWorkspace(t, workspace)
	m := inferred(t, "model ir=9 opset=20\ngraph g {\nin x float32[2,3,8,8]\nin w float32[4,3,3,3]\nin u float32[2,2,1,1]\n"+
		"y = Conv(x, w) {pads=[1, 1, 1, 1]}\nr = Relu(y)\nz = Conv(r, u) {group=2}\nout z float32[2,2,8,8]\n}\n")
	testEngine.NoteWorkspaces(m, GPU{})
	borrowed := func(op string) (sizes []int64) {
		for _, n := range m.Graph.Nodes {
			if k, _ := step.CUDA.Scratch(n); n.Is(op) && k != nil && k.Noted {
				sizes = append(sizes, k.Sizes...)
			}
		}
		return sizes
	}
	if got := borrowed("Conv"); len(got) != 2 || got[0] != workspace || got[1] != workspace {
		t.Fatalf("noted %v", got)
	}
	s, err := testEngine.Open(m, Options{Provider: ort.CUDA})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	taken, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if want := int64(y + max(workspace, z+workspace)); taken.LivePeakBytes != want {
		t.Errorf("a step takes %d bytes, want %d", taken.LivePeakBytes, want)
	}
	m.Graph.Inputs[2].Type.DType = onnx.Float16
	if got := borrowed("Conv"); len(got) != 1 {
		t.Errorf("of another node: %v", got)
	}
	withWorkspace(t, 0)
	testEngine.NoteWorkspaces(m, GPU{})
	if got := borrowed("Conv"); len(got) != 0 || m.Graph.Nodes[0].Metadata("remat.workspace") != "" {
		t.Errorf("a rehearsal keeps %v", got)
	}
}

// TestRecurrenceOnTheDevice: what the session keeps for a recurrence is noted beside its
// workspace, and is predicted with.
func TestRecurrenceOnTheDevice(t *testing.T) {
	onlyRehearsed(t)
	withWorkspace(t, 1)
	m := inferred(t, "model ir=9 opset=18\ngraph g {\nin x float32[5,2,3]\nin w float32[1,16,3]\nin r float32[1,16,4]\n"+
		"y, _, c = LSTM(x, w, r) {hidden_size=4}\nout y float32[5,1,2,4]\nout c float32[1,2,4]\n}\n")
	testEngine.NoteWorkspaces(m, GPU{})
	n := m.Graph.Nodes[0]
	note := strings.Fields(n.Metadata("remat.workspace"))
	if len(note) != 3 || note[2] != n.Fingerprint() {
		t.Fatalf("noted %q", note)
	}
	s, err := testEngine.Open(m, Options{Provider: ort.CUDA})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if held := fmt.Sprint(s.Memory().SessionBytes); note[1] != held {
		t.Errorf("%s bytes are noted, the session keeps %s", note[1], held)
	}
	n.SetMetadata("remat.workspace", "7 9 "+note[2])
	k, ok := step.CUDA.Scratch(n)
	if !ok || !k.Noted || k.Sizes[k.Library[0]] != 7 || k.Held[0] != 9 {
		t.Errorf("another note is read as %+v", k)
	}
}

// TestConstantRecurrenceOnTheDevice: a recurrence whose weights the session keeps is asked too, of
// weights that are fed, and what is noted leaves out the kept ones.
func TestConstantRecurrenceOnTheDevice(t *testing.T) {
	onlyRehearsed(t)
	withWorkspace(t, 1)
	m := inferred(t, "model ir=9 opset=18\ngraph g {\nin x float32[5,2,1]\ninit w float32[1,1,1] = [1]\ninit r float32[1,1,1] = [2]\n"+
		"y, _ = RNN(x, w, r) {hidden_size=1}\nout y float32[5,1,2,1]\n}\n")
	testEngine.NoteWorkspaces(m, GPU{})
	k, ok := step.CUDA.Scratch(m.Graph.Nodes[0])
	if !ok || !k.Noted || k.Sizes[k.Library[0]] != 0 || len(k.Held) != 2 || k.Held[1] != 4*4 { // a rehearsal borrows nothing for it
		t.Errorf("read as %+v", k)
	}
}

// inferred is the model of a text, with the types of its values.
func inferred(t *testing.T, text string) *onnx.Model {
	t.Helper()
	m, err := onnx.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		t.Fatal(err)
	}
	return m
}

// withWorkspace has plans of the null device's cuDNN ask for so many bytes.
func withWorkspace(t *testing.T, bytes int64) {
	t.Helper()
	if _, err := nulldevice.Load(nulldevice.Options{Memory: nulldevice.Unlimited, Workspace: bytes}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nulldevice.Load(nulldevice.Options{Memory: nulldevice.Unlimited}) })
}
