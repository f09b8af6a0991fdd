package remat

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// takesApart are the functions that take a text apart, or ask what it begins or ends with.
var takesApart = map[string]bool{
	"HasPrefix": true, "HasSuffix": true, "Cut": true, "CutPrefix": true, "CutSuffix": true, "TrimPrefix": true, "TrimSuffix": true,
	"Contains": true, "Index": true, "IndexByte": true, "LastIndex": true, "LastIndexByte": true, "Split": true, "SplitN": true,
	"Fields": true, "Match": true, "MatchString": true, "FindStringSubmatch": true,
}

// namesRead are the files of production code that take names apart, with the reason.
// None of them learns which pass made a node: nodes say that themselves
// (onnx.Origin). The list may only shrink.
var namesRead = map[string]string{
	"runtime/roles.go":                "a file without remat.roles may still follow the naming contract, P.grad and P.new",
	"planner/analysis/roles.go":       "a file without remat.roles may still follow the naming contract, P.grad and P.new",
	"runtime/feeds.go":                "in:NAME and param:NAME are how a user's file names what it feeds",
	"runtime/predict/known.go":        "ONNX Runtime names the casts and copies that it inserts, and notes nothing",
	"runtime/ort/profile.go":          "names of events in ONNX Runtime's profile",
	"runtime/npy.go":                  "names of files in an archive",
	"runtime/install/install.go":      "names of files in an archive",
	"onnx/names.go":                   "a name for a node that has none",
	"models/load.go":                  "names of tensors in GPT-2's published weights",
	"rewrite/grad/backward.go":        "a new name does not repeat the prefix of the old one",
	"rewrite/grad/engine.go":          "a new name does not repeat the prefix of the old one",
	"rewrite/grad/names.go":           "which exporter wrote a file is told by its names alone",
	"rewrite/grad/warn.go":            "exporters name weights and nodes after modules; a warning compares them",
	"rewrite/loss/past.go":            "the names that exporters gave inputs, outputs and extents say that they are a decoder's cache",
	"onnx/files.go":                   "names of temporary files",
	"onnx/module.go":                  "exporters name nodes after modules",
	"planner/segments.go":             "patterns that a user gives match names",
	"internal/pipeline/peft.go":       "names of tensors in PEFT's adapter files",
	"runtime/ort/nulldevice/check.go": "names of functions in CUDA's libraries",
	"train/data/inputs.go":            "the name that an exporter gave an input says what fills it where nothing else does",
	"train/watch/events.go":           "names of files in a folder",
}

// TestNamesTellNothing: no pass learns from a name what made a node.
func TestNamesTellNothing(t *testing.T) {
	packages := map[string]map[string]string{}
	for file, text := range production(t) {
		dir := path.Dir(file)
		if packages[dir] == nil {
			packages[dir] = map[string]string{}
		}
		packages[dir][file] = text
	}
	found := map[string][]string{}
	for dir, files := range packages {
		if !strings.HasPrefix(dir, "scripts") { // no part of the program
			maps.Copy(found, namesTakenApart(t, files))
		}
	}
	for _, file := range slices.Sorted(maps.Keys(found)) {
		if len(found[file]) > 0 && namesRead[file] == "" {
			t.Errorf("%s takes a name apart: %s", file, strings.Join(found[file], "; "))
		}
	}
	for file := range namesRead {
		if found[file] == nil {
			t.Errorf("%s takes no name apart any more: take it off the list", file)
		}
	}
}

// TestNamesAreFound: the search finds names that go through variables, roles, and bounds
// of a slice, as well as those that are taken apart where they stand.
func TestNamesAreFound(t *testing.T) {
	const helpers = "package p\nfunc of(v *Value) string { return v.Name }\n"
	const apart = "func apart(x string) { strings.Cut(x, y) }\n"
	for body, want := range map[string]bool{
		`strings.HasPrefix(n.Name(), "remat/")`:                           true,
		`for _, out := range r.New { strings.HasSuffix(out, ".m.new") }`:  true,
		`name := v.Name; strings.Cut(name, "/")`:                          true,
		`_ = output[len(u.p.Name):]`:                                      true,
		`_ = n.Label()[3:]`:                                               true,
		`base := strings.TrimSuffix(v.Name, x); strings.Split(base, ".")`: true,
		`apart(v.Name)`:              true,
		`strings.Cut(of(v), "/")`:    true,
		`path.Match(glob, n.Name())`: true,
		`for _, v := range outputs { all = append(all, v.Name) }; for _, x := range all { strings.HasSuffix(x, ".grad") }`: true,
		`all = append(all, v.Name); all = all[:3]`:                              false,
		`pattern.MatchString(n.Name())`:                                         true,
		`strings.Cut(text, "=")`:                                                false,
		`slices.Index(names, v.Name)`:                                           false,
		`path := c.String("o"); strings.HasSuffix(path, ".onnx"); _ = path[1:]`: false,
		`s.New("x"); strings.HasPrefix(text, s.New("y"))`:                       false,
	} {
		got := namesTakenApart(t, map[string]string{"case.go": helpers + apart + "func f() { " + body + " }"})
		if len(got) > 0 != want {
			t.Errorf("%s: found %v", body, got)
		}
	}
}

// namesTakenApart are the places at which the files of a package take the name of a node or
// value apart, by file. A variable is a name if it is set from one, a parameter if a call in
// the package gives it one, and a call if the function returns one.
func namesTakenApart(t *testing.T, files map[string]string) map[string][]string {
	t.Helper()
	set, s := token.NewFileSet(), nameSearch{funcs: map[string][]*ast.FuncDecl{}, names: map[*ast.FuncDecl]map[string]bool{}}
	for file, text := range files {
		parsed, err := parser.ParseFile(set, file, text, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range parsed.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Body != nil {
				s.funcs[f.Name.Name] = append(s.funcs[f.Name.Name], f)
				s.names[f] = map[string]bool{}
			}
		}
	}
	for s.more = true; s.more; {
		s.more = false
		s.inspect(s.collect)
	}
	places := map[string][]string{}
	s.inspect(func(n ast.Node) bool {
		if s.takenApart(n) {
			at := set.Position(n.Pos())
			places[at.Filename] = append(places[at.Filename], strings.TrimSpace(strings.Split(files[at.Filename], "\n")[at.Line-1]))
		}
		return true
	})
	return places
}

// A nameSearch holds the functions of a package by name, and the variables of each that are
// names; "" if it returns one, and list before the variable of a list of them.
type nameSearch struct {
	funcs map[string][]*ast.FuncDecl
	names map[*ast.FuncDecl]map[string]bool
	in    *ast.FuncDecl
	more  bool
}

const list = "[]"

func (s *nameSearch) inspect(visit func(ast.Node) bool) {
	for f := range s.names {
		s.in = f
		ast.Inspect(f.Body, visit)
	}
}

func (s *nameSearch) add(f *ast.FuncDecl, name string) {
	if name != "_" && !s.names[f][name] {
		s.names[f][name], s.more = true, true
	}
}

// collect adds the variables that a statement sets from a name, and the parameters that a
// call does.
func (s *nameSearch) collect(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.AssignStmt:
		for i, to := range n.Lhs {
			id, ok := to.(*ast.Ident)
			if !ok {
				continue
			}
			from := n.Rhs[min(i, len(n.Rhs)-1)]
			if s.name(from) {
				s.add(s.in, id.Name)
			}
			if c, ok := from.(*ast.CallExpr); ok && called(c) == "append" && slices.ContainsFunc(c.Args[1:], s.name) {
				s.add(s.in, list+id.Name)
			}
		}
	case *ast.RangeStmt:
		of, ok := n.X.(*ast.SelectorExpr)
		roles := ok && (of.Sel.Name == "New" || of.Sel.Name == "Grad") // names by name
		if id, ok := n.Key.(*ast.Ident); ok && roles {
			s.add(s.in, id.Name)
		}
		if id, ok := n.Value.(*ast.Ident); ok {
			from, _ := n.X.(*ast.Ident)
			if roles || from != nil && s.names[s.in][list+from.Name] {
				s.add(s.in, id.Name)
			}
		}
	case *ast.ReturnStmt:
		if slices.ContainsFunc(n.Results, s.name) {
			s.add(s.in, "")
		}
	case *ast.CallExpr:
		for _, f := range s.funcs[called(n)] {
			s.give(f, n.Args)
		}
	}
	return true
}

// give adds the texts among the parameters of f for which a call gives a name.
func (s *nameSearch) give(f *ast.FuncDecl, args []ast.Expr) {
	i := 0
	for _, p := range f.Type.Params.List {
		of, _ := p.Type.(*ast.Ident)
		for _, id := range p.Names {
			if i < len(args) && of != nil && of.Name == "string" && s.name(args[i]) {
				s.add(f, id.Name)
			}
			i++
		}
	}
}

// called is the bare name of a called function or method.
func called(c *ast.CallExpr) string {
	switch f := c.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// ofPackage reports a call of a function of the package with that name.
func ofPackage(c *ast.CallExpr, name string) bool {
	f, _ := c.Fun.(*ast.SelectorExpr)
	if f == nil {
		return false
	}
	of, _ := f.X.(*ast.Ident)
	return of != nil && of.Name == name
}

// name reports an expression that is a name: v.Name, n.Name(), n.Label(), a variable set
// from one, or what a function makes of one.
func (s *nameSearch) name(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return s.names[s.in][e.Name]
	case *ast.SelectorExpr:
		return e.Sel.Name == "Name"
	case *ast.ParenExpr:
		return s.name(e.X)
	case *ast.BinaryExpr:
		return e.Op == token.ADD && (s.name(e.X) || s.name(e.Y))
	case *ast.SliceExpr:
		return s.name(e.X)
	case *ast.CallExpr:
		f := called(e)
		if slices.Contains([]string{"Name", "Label", "GetName"}, f) {
			return true
		}
		returns := slices.ContainsFunc(s.funcs[f], func(f *ast.FuncDecl) bool { return s.names[f][""] })
		return returns || (f == "Replace" || ofPackage(e, "strings")) && slices.ContainsFunc(e.Args, s.name)
	}
	return false
}

// takenApart reports a call that takes a name apart, or a part of one by its place.
func (s *nameSearch) takenApart(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.SliceExpr:
		return s.name(n.X) || s.lengthOfName(n.Low) || s.lengthOfName(n.High)
	case *ast.CallExpr:
		return takesApart[called(n)] && !ofPackage(n, "slices") && !byPattern(n) && slices.ContainsFunc(n.Args, s.name)
	}
	return false
}

// byPattern reports a name that is held to a pattern which a user gives, in the one way.
func byPattern(c *ast.CallExpr) bool {
	if !ofPackage(c, "planner") || called(c) != "Match" {
		return false
	}
	_, written := c.Args[0].(*ast.BasicLit)
	return !written
}

// lengthOfName reports a bound that has len of a name in it.
func (s *nameSearch) lengthOfName(e ast.Expr) bool {
	found := false
	if e != nil {
		ast.Inspect(e, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok {
				id, _ := c.Fun.(*ast.Ident)
				found = found || id != nil && id.Name == "len" && s.name(c.Args[0])
			}
			return true
		})
	}
	return found
}
