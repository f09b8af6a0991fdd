package onnx

// Loading maps the file and lets the protobuf messages alias it, so that a
// model's inline weights are held once, by the page cache. Then the messages
// become a graph (fromproto.go).

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/runtime/protoiface"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// maxDepth bounds how deep messages may nest. ONNX needs about five levels per
// nested subgraph; ONNX Runtime's own reader stops at 100.
const maxDepth = 100

// A FormatError says that a file is not a model that remat can work on.
type FormatError struct {
	Path string
	Err  error
}

func (e *FormatError) Error() string {
	if e.Path == "" {
		return e.Err.Error()
	}
	return e.Path + ": " + e.Err.Error()
}

func (e *FormatError) Unwrap() error { return e.Err }

// missing is os.ErrNotExist in words that speak of a file alone.
type missing struct{}

func (missing) Error() string        { return "no such file" }
func (missing) Is(target error) bool { return target == os.ErrNotExist }

// Load opens a model, puts its nodes in order where they are not, gives inner dimensions the
// sizes that the exported program allows alone, and names dimensions of inputs that have neither
// a size nor a name. Weights are not read: inline ones stay in the mapped file, external ones are
// mapped when asked for. Close releases both.
func Load(path string) (*Model, error) {
	image, err := MapFile(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, &FormatError{path, missing{}}
		}
		return nil, &FormatError{path, err}
	}
	m, err := decode(image, filepath.Dir(path))
	if err != nil {
		Unmap(image)
		return nil, &FormatError{path, err}
	}
	m.Path, m.image = path, image
	m.Amended = m.Graph.nameInputDims()
	m.settleDims()
	nodes := m.Graph.Nodes
	if m.Graph.SortTopologically() == nil { // a cycle is Check's to tell
		m.Amended = m.Amended || !slices.Equal(nodes, m.Graph.Nodes)
	}
	return m, nil
}

// Decode reads a model from memory, which must not change while the model
// lives. External data is looked up in dir.
func Decode(data []byte, dir string) (*Model, error) {
	m, err := decode(data, dir)
	if err != nil {
		return nil, &FormatError{"", err}
	}
	return m, nil
}

// GiveUpGraph leaves the model with its metadata alone, where nothing reads the graph any
// more. Names that were taken from it stay good until Close; the pages of the file that
// hold them are the system's until they are read again.
func (m *Model) GiveUpGraph() {
	m.Graph = nil
	if len(m.image) > 0 {
		_ = unix.Madvise(m.image, unix.MADV_DONTNEED) // its pages are the file's
	}
}

// Close unmaps the model's files. No tensor of the model may be used after it.
func (m *Model) Close() error {
	err := m.files.Close()
	if m.image != nil {
		if e := Unmap(m.image); err == nil {
			err = e
		}
		m.image = nil
	}
	return err
}

// SHA256 is the hash, in hexadecimal, of the file that the model was loaded from;
// "" for a model that was not loaded, or is closed.
func (m *Model) SHA256() string {
	if m.image == nil {
		return ""
	}
	sum := sha256.Sum256(m.image)
	return hex.EncodeToString(sum[:])
}

func decode(data []byte, dir string) (*Model, error) {
	if len(data) == 0 {
		return nil, errors.New("empty file, not an onnx model")
	}
	p := &pb.ModelProto{}
	if err := checkWire(data, p); err != nil {
		return nil, err
	}
	if err := unmarshal(data, p); err != nil {
		return nil, errWire
	}
	return modelFromProto(p, dir)
}

// modelFromProto makes the graph of a decoded message, which it takes over.
func modelFromProto(p *pb.ModelProto, dir string) (*Model, error) {
	if p.Graph == nil {
		return nil, errors.New("not an onnx model: it contains no graph")
	}
	m := &Model{Proto: p, files: newFiles(dir)}
	g, err := graphFromProto(p.Graph, m.files)
	if err != nil {
		return nil, err
	}
	p.Graph, m.Graph = nil, g
	g.takeInShapes()
	p.OpsetImport = distinctImports(p.OpsetImport)
	if len(p.OpsetImport) > 0 { // ONNX Runtime takes its operators so, and its optimizer for transformers leaves them so
		m.ImportUsed("com.microsoft")
	}
	return m, nil
}

// distinctImports leaves out what is imported again at the same version, as exporters that put
// models together write it. Another version is for Check to tell.
func distinctImports(list []*pb.OperatorSetIdProto) []*pb.OperatorSetIdProto {
	var distinct []*pb.OperatorSetIdProto
	for _, o := range list {
		if !slices.ContainsFunc(distinct, func(d *pb.OperatorSetIdProto) bool {
			return NormalDomain(d.GetDomain()) == NormalDomain(o.GetDomain()) && d.GetVersion() == o.GetVersion()
		}) {
			distinct = append(distinct, o)
		}
	}
	return distinct
}

// unmarshal decodes with bytes fields aliasing data.
func unmarshal(data []byte, p proto.Message) error {
	r := p.ProtoReflect()
	_, err := r.ProtoMethods().Unmarshal(protoiface.UnmarshalInput{
		Message: r, Buf: data, Depth: maxDepth,
		Flags:    protoiface.UnmarshalAliasBuffer,
		Resolver: emptyResolver{},
	})
	return err
}
