package remat

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/onnx-remat/remat/"

// mayImport lists, for each folder, the folders of this module that it may
// import; a folder stands for those below it too, the longest match counts.
// This is the architecture: the flow load → differentiate → analyze → plan →
// rewrite → predict → run → report reads from it.
var mayImport = map[string][]string{
	"onnx":             {"onnx"},
	"ortmodel":         {},
	"models":           {"onnx", "models"},
	"planner":          {"ortmodel"},
	"planner/analysis": {"onnx", "ortmodel", "planner"},
	"rewrite":          {"onnx", "ortmodel", "planner", "rewrite", "models/safetensors"},
	"runtime":          {"onnx", "ortmodel", "runtime", "models/safetensors", "models/weights"},
	"runtime/ort":      {},
	"runtime/install":  {"runtime/ort"},
	"runtime/predict":  {"onnx", "ortmodel"},
	"report":           {"planner"},
	"internal":         {"onnx", "runtime", "internal"},
	"scripts":          {"onnx", "models"},
	"cmd":              {"onnx", "ortmodel", "models", "planner", "rewrite", "runtime", "report", "internal", "cmd"},

	// The library, which is the module's own folder, and what it is thin over.
	"remat":             {"internal/pipeline", "onnx", "planner", "rewrite", "runtime"},
	"internal/pipeline": {"onnx", "ortmodel", "planner", "rewrite", "runtime", "report", "models/safetensors"},
}

// longest returns the folder of the table that holds pkg, "" if none does.
func longest(pkg string) string {
	best := ""
	for dir := range mayImport {
		if (pkg == dir || strings.HasPrefix(pkg, dir+"/")) && len(dir) > len(best) {
			best = dir
		}
	}
	return best
}

func TestImportDirection(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}:{{join .Imports " "}}`, "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		path, imports, _ := strings.Cut(line, ":")
		pkg := strings.TrimPrefix(path, module)
		if path+"/" == module {
			pkg = "remat"
		}
		dir := longest(pkg)
		if dir == "" {
			t.Errorf("package %s is in no folder of the architecture", pkg)
		}
		for _, imp := range strings.Fields(imports) {
			if rel, ok := strings.CutPrefix(imp, module); ok && !allowed(dir, rel) {
				t.Errorf("%s must not import %s", pkg, rel)
			}
			if imp == "C" && pkg != "runtime/ort" {
				t.Errorf("%s uses cgo; only runtime/ort may", pkg)
			}
		}
	}
}

func allowed(dir, pkg string) bool {
	for _, a := range mayImport[dir] {
		if pkg == a || strings.HasPrefix(pkg, a+"/") {
			return true
		}
	}
	// A folder may use the packages below it.
	return strings.HasPrefix(pkg, dir+"/")
}
