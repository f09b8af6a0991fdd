package remat

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/onnx-remat/remat/"

// mayImport lists, for each folder, the folders of this module that it may
// import; a folder stands for those below it too, the longest match counts.
// This is the architecture: the flow load → differentiate → analyze → plan →
// rewrite → predict → run → report reads from it.
var mayImport = map[string][]string{
	"onnx":                              {"onnx"},
	"ortmodel":                          {},
	"models":                            {"onnx", "models"},
	"planner":                           {"ortmodel", "internal/units"},
	"planner/analysis":                  {"onnx", "ortmodel", "planner", "internal/step"},
	"rewrite":                           {"onnx", "ortmodel", "planner", "rewrite", "models/safetensors", "models/weights", "internal/step"},
	"rewrite/stage":                     {"onnx", "ortmodel", "planner", "internal/ranks"},
	"runtime":                           {"onnx", "ortmodel", "runtime", "models/safetensors", "models/weights", "internal/step", "internal/units"},
	"runtime/ort":                       {"runtime/ortversion"},
	"runtime/mpi":                       {},
	"runtime/install":                   {"runtime/ortversion"},
	"runtime/predict":                   {"onnx", "ortmodel", "internal/step"},
	"internal/units":                    {},
	"internal/report":                   {"planner", "internal/units"},
	"internal":                          {"onnx", "runtime", "internal"},
	"internal/step":                     {"onnx", "ortmodel", "rewrite/precision/kernels"},
	"train":                             {"onnx", "runtime", "models/safetensors", "internal/ranks", "internal/step", "train"},
	"train/watch":                       {"train", "onnx", "internal/report", "internal/units"},
	"scripts":                           {"onnx", "models"},
	"cmd":                               {"onnx", "ortmodel", "models", "planner", "rewrite", "runtime", "train", "internal", "cmd"},
	"runtime/ort/nulldevice/devicetest": {"runtime/install", "runtime/ort/nulldevice"},

	// The library, which is the module's own folder, and what it is thin over.
	"remat":             {"internal/pipeline", "onnx", "planner", "rewrite", "runtime", "train"},
	"internal/pipeline": {"onnx", "ortmodel", "planner", "rewrite", "runtime", "internal/report", "internal/units", "models/safetensors", "internal/ranks", "internal/step"},
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
			if imp == "C" && !usesC(pkg) {
				t.Errorf("%s uses cgo; only runtime/ort, its nulldevice and runtime/mpi may", pkg)
			}
		}
	}
}

// usesC says that a package may: those that call libraries of C, loaded as they run.
func usesC(pkg string) bool {
	return pkg == "runtime/ort" || pkg == "runtime/mpi" || strings.HasPrefix(pkg, "runtime/ort/nulldevice")
}

// saidOnce lists what production code says in one place, as a pattern of its
// text and the file in which that stands, and others that have a reason of their
// own.
var saidOnce = []struct {
	what, pattern, in string
	but               []string
}{
	{"the key of roles", `"remat\.roles"`, "internal/step/roles.go", nil},
	{"the key of what integers are fed", `"remat\.feeds"`, "onnx/fed.go", nil},
	{"the flags of what is computed in parts", `"(micro-batches|update-rows)", "(batch|rows)"`, "internal/pipeline/division.go", nil},
	{"the JSON form of roles", "`json:\"(grad|new)\"`", "internal/step/roles.go", nil},
	{"kernels as integers", `traits\.(OfCUDA|Scratch|ScratchCUDA)\b`, "internal/step/provider.go", nil},
	{"a graph for ortmodel", `ortmodel\.(Graph|Node)\{`, "internal/step/translate.go", []string{
		"planner/program.go", // from one to another: that of a plan
	}},
	{"a tensor of no elements that waits", `"Size"`, "rewrite/control/lower.go", []string{
		"onnx/traits/table.go", "onnx/infer/table.go", "onnx/traits/cuda.go", // rows of the operator
		"rewrite/grad/rules_zero.go", "rewrite/grad/warn.go", "rewrite/precision/decide.go", "rewrite/precision/homogeneous.go", // who reads only extents
	}},
	{"the pass of control dependencies", `"control"`, "onnx/origin.go", nil},
	{"a pattern of names", `path\.Match\([^,]+, [^"]`, "planner/segments.go", nil},
	{"a walk along a graph's edges", `(todo|stack)\[:len\((todo|stack)\)-1\]`, "internal/step/depend.go", []string{
		"onnx/remove.go",            // what is alive, below every other package
		"rewrite/grad/frequency.go", // where angles go, through few operators
		"runtime/random.go",         // where integers go that index something
		"ortmodel/fileorder.go",     // the order of ONNX Runtime, on integers
		"ortmodel/order.go",
	}},
}

// production returns the text of all production code by its path.
func production(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		files[filepath.ToSlash(path)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestSaidOnce(t *testing.T) {
	files := production(t)
	for _, s := range saidOnce {
		pattern := regexp.MustCompile(s.pattern)
		if !pattern.MatchString(files[s.in]) {
			t.Errorf("%s: %s does not say it (%s)", s.what, s.in, s.pattern)
		}
		for path, text := range files {
			if path != s.in && !slices.Contains(s.but, path) && pattern.MatchString(text) {
				t.Errorf("%s belongs in %s; %s has it too", s.what, s.in, path)
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
