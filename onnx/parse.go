package onnx

// Parsing the text form: recursive descent, one token ahead. The first error
// ends the input (every loop then sees the end), so no function returns one.

import (
	"encoding/base64"
	"strconv"

	"google.golang.org/protobuf/proto"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

// maxTextDepth bounds how deep graphs and types nest in a text.
const maxTextDepth = maxDepth

// Parse reads a model from its text form. External data is looked up in the
// current folder; ParseIn names another. Errors are FormatErrors with the line
// and column.
func Parse(text string) (*Model, error) { return ParseIn(text, ".") }

// ParseIn is Parse with external data in dir.
func ParseIn(text, dir string) (*Model, error) {
	p := &parser{lex: lexer{src: text, line: 1}, budget: baseBudget + maxGrowth*int64(len(text))}
	p.advance()
	message := p.model()
	if p.lex.err != nil {
		return nil, &FormatError{"", p.lex.err}
	}
	m, err := modelFromProto(message, dir)
	if err != nil {
		return nil, &FormatError{"", err}
	}
	return m, nil
}

type parser struct {
	lex    lexer
	tok    token
	depth  int
	budget int64
	zeros  []byte // shared by all tensors that are written as zeros
}

func (p *parser) advance() token {
	t := p.tok
	p.tok = p.lex.next()
	if p.lex.err != nil {
		p.tok = token{kind: endToken, line: t.line, col: t.col}
	}
	return t
}

func (p *parser) fail(format string, args ...any) {
	p.lex.fail(p.tok, format, args...)
	p.tok.kind = endToken
}

// spend charges the memory that the text is about to take.
func (p *parser) spend(n int64) {
	if p.budget -= n; p.budget < 0 {
		p.fail("the text expands to more memory than its length allows")
	}
}

func (p *parser) at(sign string) bool { return p.tok.kind == punctToken && p.tok.text == sign }

func (p *parser) atWord(word string) bool { return p.tok.kind == wordToken && p.tok.text == word }

// accept takes a sign if it comes next.
func (p *parser) accept(sign string) bool {
	if !p.at(sign) {
		return false
	}
	p.advance()
	return true
}

func (p *parser) expect(sign string) {
	if !p.accept(sign) {
		p.fail("got %s, want %q", p.tok, sign)
	}
}

// more reads the comma between list items or the closing sign, and reports
// whether another item follows.
func (p *parser) more(end string) bool {
	if p.accept(",") {
		return true
	}
	p.expect(end)
	return false
}

// items parses a comma list up to the closing sign; an empty one has no item.
func (p *parser) items(end string, item func()) {
	if p.accept(end) {
		return
	}
	for p.tok.kind != endToken {
		item()
		if !p.more(end) {
			return
		}
	}
	p.expect(end)
}

func (p *parser) str() string {
	if p.tok.kind != stringToken {
		p.fail("got %s, want a quoted string", p.tok)
		return ""
	}
	return p.advance().text
}

// name reads a bare or quoted name; _ is the empty one.
func (p *parser) name() string {
	switch {
	case p.tok.kind == stringToken:
		return p.advance().text
	case p.tok.kind != wordToken:
		p.fail("got %s, want a name", p.tok)
		return ""
	}
	if s := p.advance().text; s != "_" {
		return s
	}
	return ""
}

func (p *parser) int() int64 {
	n, err := strconv.ParseInt(p.tok.text, 10, 64)
	if p.tok.kind != wordToken || err != nil {
		p.fail("got %s, want an integer", p.tok)
		return 0
	}
	p.advance()
	return n
}

// optionalName is the pointer that a name field holds: nil for the empty one.
func optionalName(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// rest merges the base64 that may follow on the same line.
func (p *parser) rest(m proto.Message) {
	if p.tok.kind == blobToken && !p.tok.first {
		p.merge(m)
	}
}

// merge decodes the base64 token into a message.
func (p *parser) merge(m proto.Message) {
	if p.tok.kind != blobToken {
		p.fail("got %s, want ~base64", p.tok)
		return
	}
	data, err := base64.RawStdEncoding.DecodeString(p.tok.text)
	if err != nil {
		p.fail("~ without base64 after it")
		return
	}
	sum, err := wireCost(data, m)
	if err == nil {
		p.spend(sum.cost)
		err = unmarshal(data, m)
	}
	if err != nil {
		p.fail("the base64 is not a %s", m.ProtoReflect().Descriptor().Name())
		return
	}
	p.advance()
}

func (p *parser) enter() bool {
	if p.depth++; p.depth > maxTextDepth {
		p.fail("nested more than %d deep", maxTextDepth)
		return false
	}
	return true
}

func (p *parser) model() *pb.ModelProto {
	m := &pb.ModelProto{}
	if !p.atWord("model") {
		p.fail("got %s, want the word model", p.tok)
		return m
	}
	p.advance()
	for p.tok.kind == wordToken && !p.tok.first {
		p.header(m)
	}
	p.rest(m)
	for p.atWord("meta") {
		p.advance()
		key := p.name()
		p.expect("=")
		m.MetadataProps = append(m.MetadataProps, &pb.StringStringEntryProto{Key: &key, Value: new(p.str())})
		p.spend(200)
	}
	m.Graph = p.graph()
	if p.tok.kind != endToken {
		p.fail("%s after the end of the graph", p.tok)
	}
	return m
}

// header reads one key=value of the model line.
func (p *parser) header(m *pb.ModelProto) {
	key := p.advance()
	if key.text == "opset" {
		p.opset(m)
		return
	}
	p.expect("=")
	switch key.text {
	case "ir":
		m.IrVersion = new(p.int())
	case "model_version":
		m.ModelVersion = new(p.int())
	case "producer":
		m.ProducerName = new(p.str())
	case "producer_version":
		m.ProducerVersion = new(p.str())
	case "domain":
		m.Domain = new(p.str())
	case "doc":
		m.DocString = new(p.str())
	default:
		p.tok = key
		p.fail("a model has no %s", key)
	}
}

func (p *parser) opset(m *pb.ModelProto) {
	domain := new(string)
	if p.accept("[") {
		domain = optionalName(p.name())
		p.expect("]")
	}
	p.expect("=")
	m.OpsetImport = append(m.OpsetImport, &pb.OperatorSetIdProto{Domain: domain, Version: new(p.int())})
	p.spend(100)
}
