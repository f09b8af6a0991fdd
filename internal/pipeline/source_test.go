package pipeline

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/rewrite/optim"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestCloseOfShortenedFile: a file that somebody shortened meanwhile is closed, not read again.
func TestCloseOfShortenedFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := zooStep(t, "gpt2-tiny", optim.SGD, smallZoo).Save(path); err != nil {
		t.Fatal(err)
	}
	s, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestExecutedWithoutFunctions: a session of a training graph whose update is in functions finds the optimizer's state,
// and takes what is predicted.
func TestExecutedWithoutFunctions(t *testing.T) {
	e := engine(t)
	m := zooStep(t, "gpt2-tiny", optim.AdamW, smallZoo)
	m.Graph.AnnotateTypes()
	path := filepath.Join(t.TempDir(), "m.onnx")
	data, err := proto.Marshal(outlined(m, 40, len(m.Graph.Nodes)-60))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	src, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	typed, err := src.Typed(nil)
	if err != nil {
		t.Fatal(err)
	}
	roles, _ := FoundRoles(typed, nil)
	executed, err := src.Executed()
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.OpenLoaded(executed, runtime.Options{Level: 1, Threads: 1, Provider: ort.CPU, Roles: &roles})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p, err := Predict(e, typed, roles, Options{OptLevel: 1, Threads: 1}, s.Bound())
	if err != nil {
		t.Fatal(err)
	}
	peak := steps(t, s, 1, func(int, int64) {}).peaks[0]
	if !p.Exact() || p.LivePeak != peak {
		t.Errorf("%d bytes predicted, %d measured; unknown: %v", p.LivePeak, peak, p.Unknown)
	}
	if mem := s.Memory(); 10*mem.StateBytes < 19*mem.ParameterBytes { // AdamW has two moments
		t.Errorf("%d bytes of state beside %d of parameters", mem.StateBytes, mem.ParameterBytes)
	}
}

// outlined is the message of a model of which a few nodes, from a place of its list on, are a call of a function.
func outlined(m *onnx.Model, few, at int) *pb.ModelProto {
	p := m.ToProto()
	body := slices.Clone(p.Graph.Node[at : at+few])
	made, read := map[string]bool{}, map[string]bool{}
	for _, n := range body {
		for _, name := range n.Output {
			made[name] = true
		}
	}
	var in, out []string
	for _, n := range body {
		for _, name := range n.Input {
			if name != "" && !made[name] && !slices.Contains(in, name) {
				in = append(in, name)
			}
		}
	}
	for _, n := range slices.Concat(p.Graph.Node[:at], p.Graph.Node[at+few:]) {
		for _, name := range n.Input {
			read[name] = true
		}
	}
	for _, o := range p.Graph.Output {
		read[o.GetName()] = true
	}
	for _, n := range body {
		for _, name := range n.Output {
			if read[name] {
				out = append(out, name)
			}
		}
	}
	name, domain := "f", "my"
	p.Functions = append(p.Functions, &pb.FunctionProto{Name: &name, Domain: &domain, Input: in, Output: out, Node: body, OpsetImport: p.OpsetImport})
	call := &pb.NodeProto{OpType: &name, Domain: &domain, Input: in, Output: out}
	p.Graph.Node = slices.Concat(p.Graph.Node[:at], []*pb.NodeProto{call}, p.Graph.Node[at+few:])
	p.OpsetImport = append(slices.Clone(p.OpsetImport), &pb.OperatorSetIdProto{Domain: &domain, Version: proto.Int64(1)})
	return p
}
