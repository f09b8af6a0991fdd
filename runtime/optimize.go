package runtime

// Graphs as ONNX Runtime's own optimizer leaves them.
//
//	model ─▶ lift trainable initializers ─▶ session with OptimizedPath ─▶ load
//	      ─▶ put the initializers back
//
// Initializers become inputs first, or they would be folded into others.
// Folding stops at a size, so that tables that are cheap to compute do not
// land in the file. Weakness: ONNX Runtime writes no inferred shapes.

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	pb "github.com/onnx-remat/remat/onnx/onnxpb"
	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/ort"
)

// DefaultFold is the largest constant, in bytes, that Optimize lets ONNX
// Runtime compute ahead: every shape, index and scalar fits, no mask does.
const DefaultFold = 4096

const (
	keyMaxFold     = "optimization.constant_folding_max_output_size_in_bytes"
	keyModelFolder = "session.model_external_initializers_file_folder_path"
	keyNoPacking   = "session.disable_prepacking"
	keySpinning    = "session.inter_op.allow_spinning"
)

// OptimizeOptions say how a model is optimized.
type OptimizeOptions struct {
	Level    int // 0, 1, 2 or 99
	Provider ort.Provider
	Device   int
	Dims     map[string]int64
	// MaxFold is the largest constant that is computed ahead, in bytes;
	// 0: DefaultFold, negative: no limit.
	MaxFold int64
	// Lift says which initializers must come out as they are; nil: all float
	// ones of more than one element.
	Lift func(*onnx.Value) bool
	// Disabled names optimizers that are left out.
	Disabled []string
}

// Optimize returns the model after ONNX Runtime's offline optimization. The
// given model is not changed. The result refers to the same external data and
// must be saved in the same folder, or be rebased.
func (e *Engine) Optimize(m *onnx.Model, o OptimizeOptions) (*onnx.Model, error) {
	if o.Lift == nil {
		o.Lift = trainable
	}
	lifted, tensors := liftProto(m, o.Lift)
	data, err := proto.Marshal(lifted)
	if err != nil {
		return nil, fmt.Errorf("optimize at level %d: %w", o.Level, err)
	}
	config := map[string]string{}
	o.MaxFold = cmp.Or(o.MaxFold, DefaultFold)
	if o.MaxFold > 0 {
		config[keyMaxFold] = fmt.Sprint(o.MaxFold)
	}
	out, err := e.optimized(data, folderOf(m), e.withoutIdle(ort.SessionOptions{
		Level: o.Level, Threads: 1, Provider: o.Provider, Device: o.Device, Dims: o.Dims,
		DisabledOptimizers: o.Disabled, Config: config, Purpose: "normalize",
	}, m.Graph))
	if err != nil {
		return nil, fmt.Errorf("optimize at level %d: %w", o.Level, missingKernel(m.Graph, err))
	}
	model := new(pb.ModelProto)
	if err := proto.Unmarshal(out, model); err != nil {
		return nil, fmt.Errorf("optimize at level %d: %w", o.Level, err)
	}
	restoreInitializers(model.Graph, m.Graph, tensors)
	if out, err = proto.Marshal(model); err != nil {
		return nil, fmt.Errorf("optimize at level %d: %w", o.Level, err)
	}
	result, err := onnx.Decode(out, folderOf(m))
	if err != nil {
		return nil, fmt.Errorf("optimize at level %d: %w", o.Level, err)
	}
	result.Path = m.Path
	return result, nil
}

// liftProto is the model's message with some initializers as inputs, and those
// initializers by name. It shares all parts with the model.
func liftProto(m *onnx.Model, lift func(*onnx.Value) bool) (*pb.ModelProto, map[string]*pb.TensorProto) {
	full := m.ToProto()
	g := full.Graph
	tensors := map[string]*pb.TensorProto{}
	inputs := g.Input
	for _, v := range m.Graph.Initializers {
		if !lift(v) {
			continue
		}
		tensors[v.Name] = v.Init.Proto
		if !v.IsInput() {
			inputs = append(inputs[:len(inputs):len(inputs)], &pb.ValueInfoProto{Name: new(v.Name), Type: v.Init.Type().Proto()})
		}
	}
	kept := make([]*pb.TensorProto, 0, len(g.Initializer))
	for _, t := range g.Initializer {
		if tensors[t.GetName()] == nil {
			kept = append(kept, t)
		}
	}
	return &pb.ModelProto{
		IrVersion: full.IrVersion, OpsetImport: full.OpsetImport, Functions: full.Functions,
		MetadataProps: full.MetadataProps, ProducerName: full.ProducerName, ProducerVersion: full.ProducerVersion,
		Domain: full.Domain, ModelVersion: full.ModelVersion, DocString: full.DocString,
		Graph: &pb.GraphProto{
			Name: g.Name, Node: g.Node, Initializer: kept, SparseInitializer: g.SparseInitializer, Input: inputs,
			Output: g.Output, ValueInfo: g.ValueInfo, QuantizationAnnotation: g.QuantizationAnnotation,
			DocString: g.DocString, MetadataProps: g.MetadataProps,
		},
	}, tensors
}

// restoreInitializers puts initializers back; those that were not inputs before
// are not inputs again. Initializers without readers are dropped.
func restoreInitializers(g *pb.GraphProto, before *onnx.Graph, tensors map[string]*pb.TensorProto) {
	read := map[string]bool{}
	readNames(g, read)
	for name, t := range tensors {
		if v := before.Value(name); read[name] || v != nil && v.IsInput() {
			g.Initializer = append(g.Initializer, t)
		}
	}
	slices.SortStableFunc(g.Initializer, func(a, b *pb.TensorProto) int { return strings.Compare(a.GetName(), b.GetName()) })
	g.Input = slices.DeleteFunc(g.Input, func(v *pb.ValueInfoProto) bool {
		return tensors[v.GetName()] != nil && !before.Value(v.GetName()).IsInput()
	})
}

// readNames collects every name that the graph or a subgraph reads or returns.
func readNames(g *pb.GraphProto, to map[string]bool) {
	for _, n := range g.Node {
		for _, name := range n.Input {
			to[name] = true
		}
		for _, sub := range (&onnx.Node{Proto: n}).Subgraphs() {
			readNames(sub, to)
		}
	}
	for _, o := range g.Output {
		to[o.GetName()] = true
	}
}

// Dump returns the graph that ONNX Runtime executes for the model under the
// options, with its nodes in the order in which they run.
//
// A graph that ONNX Runtime changed is saved by it in that order; one that it
// left alone is saved as it was read, and then the known rule gives the order.
// The rule also gives it, sooner, for a large graph in which no node is new; that is not
// tried where the last large graph at that level had new ones, as all have to which casts
// are added.
func (e *Engine) Dump(m *onnx.Model, o ort.SessionOptions) (*onnx.Model, error) {
	many := len(m.Graph.Nodes) >= manyNodes
	if many && !e.renews.at(o.Level) {
		left, err := e.Left(m, o)
		if err != nil || asRun(m.Graph, left.Graph) {
			return left, err
		}
		left.Close()
	}
	dump, err := e.dump(m, o)
	if err == nil && many {
		e.renews.note(o.Level, hasNew(m.Graph, dump.Graph))
	}
	if err == nil && sameOrder(m.Graph, dump.Graph) {
		dump.Graph.Nodes = inOrder(dump.Graph, ortmodel.Order)
	}
	return dump, err
}

// manyNodes is the least number of nodes for which Dump asks breadth first before it asks for
// the graph as it is. GPT-2 XL's training graph, 15,229 nodes, takes 0.6 of the time so; where
// ONNX Runtime made new nodes, that session is spent for nothing.
var manyNodes = 8192 // a test has fewer

// renews says at which levels ONNX Runtime made new nodes in the last large graph.
type renews struct {
	sync.Mutex
	levels map[int]bool
}

func (r *renews) at(level int) bool {
	r.Lock()
	defer r.Unlock()
	return r.levels[level]
}

func (r *renews) note(level int, made bool) {
	r.Lock()
	defer r.Unlock()
	if r.levels == nil {
		r.levels = map[int]bool{}
	}
	r.levels[level] = made
}

// hasNew reports a node of a graph that ONNX Runtime saved that is none of the given one's.
func hasNew(given, saved *onnx.Graph) bool {
	return slices.ContainsFunc(saved.Nodes, func(n *onnx.Node) bool {
		made := makerOf(given, n)
		return made == nil || !sameNode(made, n)
	})
}

// makerOf is the node of a graph that makes what a node of another one makes, by name; nil
// where none does.
func makerOf(g *onnx.Graph, n *onnx.Node) *onnx.Node {
	for _, o := range n.Returns() {
		if v := g.Value(o.Name); v != nil {
			return v.Producer
		}
		return nil
	}
	return nil
}

// asRun lists the nodes of a graph that ONNX Runtime saved in the order in which it runs the
// given graph, whatever order it was asked in. It returns false, and changes nothing, where
// that order cannot be told: some nodes were not given, or read something new. The order hangs
// on when ONNX Runtime made such nodes.
func asRun(given, saved *onnx.Graph) bool {
	var kept []*onnx.Node
	for _, n := range given.Nodes {
		made := makerOf(saved, n)
		if made == nil {
			continue // computed ahead, read by nobody, or left out of a chain
		}
		if !sameNode(n, made) || !slices.EqualFunc(n.Inputs, made.Inputs, sameSource(saved)) {
			return false
		}
		kept = append(kept, made)
	}
	if len(kept) != len(saved.Nodes) {
		return false
	}
	saved.Nodes = kept
	saved.Nodes = inOrder(saved, ortmodel.Order)
	return true
}

// sameSource compares an input as it was given with the same one as it was saved: both come
// from the same node, the saved one from none and the given one's node is gone, or that node
// is gone and the saved one is what it read, as where a Pad became an attribute of its reader.
func sameSource(saved *onnx.Graph) func(given, now *onnx.Value) bool {
	return func(given, now *onnx.Value) bool {
		if given == nil || now == nil {
			return given == nil && now == nil
		}
		for now.Producer != nil && now.Name != given.Name {
			n := given.Producer
			if n == nil || makerOf(saved, n) != nil || len(n.Inputs) == 0 || n.Inputs[0] == nil {
				return false
			}
			given = n.Inputs[0]
		}
		if now.Producer != nil {
			return true
		}
		v := saved.Value(given.Name)
		return v == nil || v.Producer == nil
	}
}

// Left returns what Dump does for who asks nothing of the order: ONNX Runtime gets the nodes
// in the one that it sorts soonest.
func (e *Engine) Left(m *onnx.Model, o ort.SessionOptions) (*onnx.Model, error) {
	nodes := m.Graph.Nodes
	defer func() { m.Graph.Nodes = nodes }()
	if order := inOrder(m.Graph, ortmodel.BreadthFirst); len(order) == len(nodes) {
		m.Graph.Nodes = order
	}
	return e.dump(m, o)
}

// inOrder lists a graph's nodes in an order of its structure.
func inOrder(g *onnx.Graph, order func(*ortmodel.Graph) []int) []*onnx.Node {
	ordered := make([]*onnx.Node, 0, len(g.Nodes))
	for _, i := range order(step.Structure(g)) {
		ordered = append(ordered, g.Nodes[i])
	}
	return ordered
}

// dump returns the graph that ONNX Runtime saves, as it saves it.
func (e *Engine) dump(m *onnx.Model, o ort.SessionOptions) (*onnx.Model, error) {
	o.ProfilePrefix = ""
	restore := m.Graph.AsRead(len(o.Dims) > 0)
	data, err := m.Encode()
	restore()
	if err != nil {
		return nil, err
	}
	out, err := e.optimized(data, folderOf(m), e.withoutIdle(o, m.Graph))
	if err != nil {
		return nil, missingKernel(m.Graph, err)
	}
	dump, err := onnx.Decode(out, folderOf(m))
	if err != nil {
		return nil, removedInside(m.Graph, err)
	}
	dump.Path = m.Path
	return dump, nil
}

// removedInside says of a graph that ONNX Runtime saved, in which a subgraph reads what nothing makes, that
// it was there before: ONNX Runtime took it out for what others read, and would not run that.
func removedInside(g *onnx.Graph, err error) error {
	e, ok := errors.AsType[*onnx.CaptureError](err)
	if !ok || g.Value(e.Value) == nil || g.Value(e.Value).Producer == nil {
		return err
	}
	return fmt.Errorf("node %q: its subgraph reads %q, which ONNX Runtime removes, so that it cannot run the graph: make it in the model by other nodes than %s",
		e.Node, e.Value, g.Value(e.Value).Producer.OpType())
}

// sameOrder says whether b lists the same nodes as a in the same order, but for
// Constant nodes, which become initializers when a file is read.
func sameOrder(a, b *onnx.Graph) bool {
	nodes := slices.DeleteFunc(slices.Clone(a.Nodes), func(n *onnx.Node) bool { return n.Is("Constant") })
	return slices.EqualFunc(nodes, b.Nodes, sameNode)
}

// sameNode says whether two nodes have the same operator, name and outputs.
func sameNode(x, y *onnx.Node) bool {
	return x.OpType() == y.OpType() && x.Name() == y.Name() && x.Domain() == y.Domain() &&
		slices.EqualFunc(x.Outputs, y.Outputs, func(v, w *onnx.Value) bool {
			return v == nil && w == nil || v != nil && w != nil && v.Name == w.Name
		})
}

// optimized makes a session only for the file that it saves. Weights are packed
// after that, for kernels that will not run: all of a model's weights would be
// read for nothing. What was asked for lately is not asked for again.
func (e *Engine) optimized(model []byte, folder string, o ort.SessionOptions) ([]byte, error) {
	key, err := dumpKey(model, folder, o)
	if err != nil {
		return nil, err
	}
	if data := e.dumped.get(key); data != nil {
		return data, nil
	}
	data, err := e.optimize(model, folder, o)
	if err == nil {
		e.dumped.keep(key, data)
	}
	return data, err
}

func (e *Engine) optimize(model []byte, folder string, o ort.SessionOptions) ([]byte, error) {
	dir, err := ort.TemporaryDir("remat-optimize-")
	if err != nil {
		return nil, err
	}
	defer ort.DropTemporary(dir)
	o.OptimizedPath = filepath.Join(dir, "optimized.onnx")
	if err := e.save(model, folder, o); err != nil {
		return nil, err
	}
	return os.ReadFile(o.OptimizedPath)
}

// save makes a session that saves the model as it is optimized.
func (e *Engine) save(model []byte, folder string, o ort.SessionOptions) error {
	o.Allocator = ort.NoArena
	o.Unplanned = o.Provider != ort.CUDA // which knows no parallel execution
	s, err := e.sessionOf(model, folder, o.WithConfig(map[string]string{keyNoPacking: "1", keySpinning: "0"}))
	if err != nil {
		return unsaved(err, o.OptimizedPath, len(model))
	}
	return s.Close()
}

// unsaved is the error of a session that was to save its graph of some bytes: where the folder
// has no room for it, ONNX Runtime does not say so.
func unsaved(err error, path string, bytes int) error {
	if text := err.Error(); !strings.Contains(text, "serialization failed") && !strings.Contains(text, "Failed to save ORT format model") {
		return err
	}
	return cmp.Or(ort.NoRoom(path, int64(bytes)), err)
}

// sessionOf makes a session of a model in memory; external data is found in
// the folder, if there is one.
func (e *Engine) sessionOf(model []byte, folder string, o ort.SessionOptions) (*ort.Session, error) {
	if folder != "" {
		o = o.WithConfig(map[string]string{keyModelFolder: folder})
	}
	return e.Env.NewSessionFromBytes(model, o)
}

func folderOf(m *onnx.Model) string {
	if m.Path == "" {
		return ""
	}
	dir, err := filepath.Abs(filepath.Dir(m.Path))
	if err != nil {
		return filepath.Dir(m.Path)
	}
	return dir
}

func trainable(v *onnx.Value) bool {
	n, err := v.Init.Elements()
	return err == nil && n > 1 && v.Init.DType().IsFloat()
}
