package onnx

// Parsing graphs: the statements and the nodes.

import (
	"strings"

	pb "github.com/onnx-remat/remat/onnx/onnxpb"
)

func (p *parser) graph() *pb.GraphProto {
	g := &pb.GraphProto{}
	if !p.atWord("graph") {
		p.fail("got %s, want a graph", p.tok)
		return g
	}
	p.advance()
	if !p.enter() {
		return g
	}
	if !p.at("{") {
		g.Name = optionalName(p.name())
	}
	p.expect("{")
	g.DocString, g.MetadataProps = p.notes()
	p.rest(g)
	for p.tok.kind != endToken && !p.at("}") {
		p.statement(g)
	}
	p.expect("}")
	p.depth--
	return g
}

func (p *parser) statement(g *pb.GraphProto) {
	if !p.tok.first {
		p.fail("got %s, want the end of the line", p.tok)
		return
	}
	if p.tok.kind == wordToken {
		switch p.tok.text {
		case "in":
			g.Input = append(g.Input, p.valueInfo())
			return
		case "out":
			g.Output = append(g.Output, p.valueInfo())
			return
		case "value":
			g.ValueInfo = append(g.ValueInfo, p.valueInfo())
			return
		case "init":
			p.advance()
			t := &pb.TensorProto{Name: optionalName(p.name())}
			p.tensor(t)
			g.Initializer = append(g.Initializer, t)
			return
		}
	}
	g.Node = append(g.Node, p.node())
}

// notes reads the documentation string and metadata that may follow on the
// same line.
func (p *parser) notes() (doc *string, meta []*pb.StringStringEntryProto) {
	if p.atWord("doc") && !p.tok.first {
		p.advance()
		doc = new(p.str())
	}
	if p.atWord("meta") && !p.tok.first {
		p.advance()
		p.expect("{")
		p.items("}", func() {
			key := p.name()
			p.expect("=")
			meta = append(meta, &pb.StringStringEntryProto{Key: &key, Value: new(p.str())})
			p.spend(200)
		})
	}
	return doc, meta
}

func (p *parser) valueInfo() *pb.ValueInfoProto {
	p.spend(400)
	p.advance()
	v := &pb.ValueInfoProto{Name: optionalName(p.name())}
	if p.tok.kind == wordToken && !p.tok.first && p.tok.text != "doc" && p.tok.text != "meta" {
		v.Type = p.typ()
	}
	v.DocString, v.MetadataProps = p.notes()
	p.rest(v)
	return v
}

func (p *parser) node() *pb.NodeProto {
	p.spend(nodeCost)
	n := &pb.NodeProto{}
	for !p.at("=") && p.tok.kind != endToken {
		n.Output = append(n.Output, p.name())
		p.spend(40)
		if !p.accept(",") {
			break
		}
	}
	p.expect("=")
	p.operator(n)
	p.expect("(")
	p.items(")", func() {
		n.Input = append(n.Input, p.name())
		p.spend(40)
	})
	if p.at("{") && !p.tok.first {
		p.advance()
		p.items("}", func() { n.Attribute = append(n.Attribute, p.attribute()) })
	}
	if p.tok.kind == stringToken && !p.tok.first {
		n.Name = optionalName(p.str())
	}
	n.DocString, n.MetadataProps = p.notes()
	p.rest(n)
	return n
}

// operator reads Op, domain.Op or "Op"@domain.
func (p *parser) operator(n *pb.NodeProto) {
	if p.tok.kind == stringToken {
		n.OpType = optionalName(p.str())
		if p.accept("@") {
			n.Domain = optionalName(p.name())
		}
		return
	}
	op := p.name()
	if i := strings.LastIndexByte(op, '.'); i >= 0 {
		n.Domain, op = optionalName(op[:i]), op[i+1:]
	}
	n.OpType = optionalName(op)
}
