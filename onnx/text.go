package onnx

// The text form: one statement per line, in the order a reader wants them.
//
//	model ir=10 opset=20 opset[com.microsoft]=1 producer="remat"
//	meta remat.version = "1"
//	graph main {
//	  in    x float32[batch,64]
//	  init  w float32[64,64] = external("w.bin", 0, 16384)
//	  h, _ = com.microsoft.FusedMatMul(x, w, _) {alpha=1.0, axes=[1, 2]} "node/name"
//	  out   h float32[batch,64]
//	  value h float32[batch,64]
//	}
//
// Names stand bare where they are plain words and quoted as in Go elsewhere; _
// is one left out; # starts a comment. Whatever a message holds beyond what its
// line can say (unknown fields, empty strings that are present, functions,
// quantization annotations) follows as ~ and the base64 of a protobuf message
// that is merged in, so that printing and parsing loses nothing. A tensor's
// data is = [numbers] or = zeros where it lies in raw_data, = int32_data [...]
// and so on for the typed fields, = bytes(base64) where it is long.
//
// Weakness: values are bound to names only after parsing, so an error about a
// name that nothing makes carries no line.

import (
	"bufio"
	"encoding/base64"
	"io"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// Print writes the model as text that Parse reads back to an equal model.
func Print(w io.Writer, m *Model) error {
	t := &printer{w: bufio.NewWriter(w)}
	t.model(m.ToProto())
	return t.w.Flush()
}

// Text is what Print writes.
func (m *Model) Text() string {
	var b strings.Builder
	Print(&b, m)
	return b.String()
}

// printer writes text; bufio keeps the first error until Flush.
type printer struct {
	w      *bufio.Writer
	indent int
}

func (t *printer) put(parts ...string) {
	for _, s := range parts {
		t.w.WriteString(s)
	}
}

func (t *printer) line(keyword string) {
	t.put(strings.Repeat("  ", t.indent), keyword)
}

// fields is a set of field numbers below 64: what a line has already said.
type fields uint64

func (f *fields) add(numbers ...int) {
	for _, n := range numbers {
		*f |= 1 << n
	}
}

// rest writes, as base64, everything of the message that is not in done.
func (t *printer) rest(m proto.Message, done fields) {
	src := m.ProtoReflect()
	left := len(src.GetUnknown()) > 0
	src.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		left = left || done&(1<<f.Number()) == 0
		return !left
	})
	if !left {
		return
	}
	dst := src.New()
	src.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if done&(1<<f.Number()) == 0 {
			dst.Set(f, v)
		}
		return true
	})
	dst.SetUnknown(src.GetUnknown())
	t.put(" ", blob(dst.Interface()))
}

// blob is a message as ~ and base64. Messages that were decoded can always be
// encoded again.
func blob(m proto.Message) string {
	data, err := proto.MarshalOptions{Deterministic: true, AllowPartial: true}.Marshal(m)
	if err != nil {
		panic("onnx: a message that cannot be encoded: " + err.Error())
	}
	return "~" + base64.RawStdEncoding.EncodeToString(data)
}

func (t *printer) model(p *pb.ModelProto) {
	var done fields
	done.add(7)
	t.put("model")
	if p.IrVersion != nil {
		done.add(1)
		t.put(" ir=", strconv.FormatInt(*p.IrVersion, 10))
	}
	if plainOpsets(p.OpsetImport) {
		done.add(8)
		for _, o := range p.OpsetImport {
			t.put(" opset", opsetDomain(o), "=", strconv.FormatInt(*o.Version, 10))
		}
	}
	for _, s := range []struct {
		key    string
		number int
		value  *string
	}{{"producer", 2, p.ProducerName}, {"producer_version", 3, p.ProducerVersion}, {"domain", 4, p.Domain}, {"doc", 6, p.DocString}} {
		if s.value != nil {
			done.add(s.number)
			t.put(" ", s.key, "=", strconv.Quote(*s.value))
		}
	}
	if p.ModelVersion != nil {
		done.add(5)
		t.put(" model_version=", strconv.FormatInt(*p.ModelVersion, 10))
	}
	meta := plainEntries(p.MetadataProps)
	if meta {
		done.add(14)
	}
	t.rest(p, done)
	t.put("\n")
	if meta {
		for _, kv := range p.MetadataProps {
			t.put("meta ", quoteName(*kv.Key), " = ", strconv.Quote(*kv.Value), "\n")
		}
	}
	t.graph(p.Graph)
	t.put("\n")
}

func plainOpsets(list []*pb.OperatorSetIdProto) bool {
	return !slices.ContainsFunc(list, func(o *pb.OperatorSetIdProto) bool { return o.Version == nil || len(o.ProtoReflect().GetUnknown()) > 0 })
}

// opsetDomain is "" for the standard domain, written out as exporters do it.
func opsetDomain(o *pb.OperatorSetIdProto) string {
	switch {
	case o.Domain == nil:
		return "[_]"
	case *o.Domain == "":
		return ""
	}
	return "[" + quoteName(*o.Domain) + "]"
}

func plainEntries(list []*pb.StringStringEntryProto) bool {
	return !slices.ContainsFunc(list, func(kv *pb.StringStringEntryProto) bool {
		return kv.Key == nil || kv.Value == nil || len(kv.ProtoReflect().GetUnknown()) > 0
	})
}

// graph writes "graph name {" to "}" without a newline after it.
func (t *printer) graph(p *pb.GraphProto) {
	var done fields
	done.add(1, 5, 11, 12, 13)
	t.put("graph ")
	if p.GetName() != "" {
		done.add(2)
		t.put(quoteName(p.GetName()), " ")
	}
	t.put("{")
	done |= t.notes(10, p.DocString, 16, p.MetadataProps)
	t.rest(p, done)
	t.put("\n")
	t.indent++
	for _, v := range p.Input {
		t.valueInfo("in    ", v)
	}
	for _, i := range p.Initializer {
		t.line("init  ")
		t.put(quoteName(i.GetName()), " ")
		var named fields
		if i.GetName() != "" {
			named.add(8)
		}
		t.tensor(i, named)
		t.put("\n")
	}
	for _, n := range p.Node {
		t.node(n)
	}
	for _, v := range p.Output {
		t.valueInfo("out   ", v)
	}
	for _, v := range p.ValueInfo {
		t.valueInfo("value ", v)
	}
	t.indent--
	t.line("}")
}

// notes writes a documentation string and metadata, and says which of the two
// field numbers it could write.
func (t *printer) notes(docField int, doc *string, metaField int, meta []*pb.StringStringEntryProto) (done fields) {
	if doc != nil {
		done.add(docField)
		t.put(" doc ", strconv.Quote(*doc))
	}
	if len(meta) == 0 || !plainEntries(meta) {
		return done
	}
	done.add(metaField)
	t.put(" meta {")
	for i, kv := range meta {
		if i > 0 {
			t.put(", ")
		}
		t.put(quoteName(*kv.Key), "=", strconv.Quote(*kv.Value))
	}
	t.put("}")
	return done
}

func (t *printer) valueInfo(keyword string, v *pb.ValueInfoProto) {
	var done fields
	done.add(2)
	t.line(keyword)
	t.put(quoteName(v.GetName()))
	if v.GetName() != "" {
		done.add(1)
	}
	if v.Type != nil {
		t.put(" ", typeText(v.Type))
	}
	done |= t.notes(3, v.DocString, 4, v.MetadataProps)
	t.rest(v, done)
	t.put("\n")
}

// node writes "outputs = op(inputs) {attributes} name notes rest".
func (t *printer) node(n *pb.NodeProto) {
	var done fields
	done.add(1, 2, 5)
	t.line("")
	t.outputs(n.Output)
	t.put("= ", opText(n.GetDomain(), n.GetOpType()), "(")
	if n.GetOpType() != "" {
		done.add(4)
	}
	if n.GetDomain() != "" {
		done.add(7)
	}
	t.names(n.Input)
	t.put(")")
	if len(n.Attribute) > 0 {
		t.put(" {")
		for i, a := range n.Attribute {
			if i > 0 {
				t.put(", ")
			}
			t.attribute(a)
		}
		t.put("}")
	}
	if n.GetName() != "" {
		done.add(3)
		t.put(" ", strconv.Quote(n.GetName()))
	}
	done |= t.notes(6, n.DocString, 9, n.MetadataProps)
	t.rest(n, done)
	t.put("\n")
}

// outputs writes the left side of a node, whose first name must not be taken
// for a keyword.
func (t *printer) outputs(list []string) {
	for i, s := range list {
		if i == 0 && keywords[s] {
			s = strconv.Quote(s)
		} else {
			s = quoteName(s)
		}
		if i < len(list)-1 {
			s += ","
		}
		t.put(s, " ")
	}
}

func (t *printer) names(list []string) {
	for i, s := range list {
		if i > 0 {
			t.put(", ")
		}
		t.put(quoteName(s))
	}
}

// opText is domain.Op, or "Op"@domain where a dot would mislead.
func opText(domain, op string) string {
	if isWord(op) && op != "_" && !strings.Contains(op, ".") && (domain == "" || isWord(domain)) {
		if domain == "" {
			return op
		}
		return domain + "." + op
	}
	text := strconv.Quote(op)
	if domain != "" {
		text += "@" + quoteName(domain)
	}
	return text
}

// keywords open statements, so a node's first output of that name is quoted.
var keywords = map[string]bool{"in": true, "init": true, "out": true, "value": true}

// quoteName writes a name bare, quoted, or as _ where it is empty.
func quoteName(s string) string {
	if s == "" {
		return "_"
	}
	if s != "_" && isWord(s) {
		return s
	}
	return strconv.Quote(s)
}

func isWord(s string) bool {
	for i := 0; i < len(s); i++ {
		if !wordByte(s[i]) || s[i] == '?' {
			return false
		}
	}
	return s != ""
}

// wordByte reports the bytes of bare words: those of names that exporters
// make, of numbers, of base64 and of polynomials.
func wordByte(c byte) bool {
	switch {
	case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		return true
	}
	return strings.IndexByte("_./:$+-*?", c) >= 0
}
