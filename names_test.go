package remat

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// parsesName finds calls that take a node's or a value's name apart.
var parsesName = regexp.MustCompile(`(?:HasPrefix|HasSuffix|Cut|CutPrefix|CutSuffix|TrimPrefix|TrimSuffix|Contains|Index|LastIndex\w*|Split|SplitN|Fields|MatchString)\((?:[^()]|\(\))*(?:\.Name\b|\.Name\(\)|\.Label\(\)|\.GetName\(\))`)

// namesRead are the files of production code that take names apart, with the reason.
// None of them learns which pass made a node: nodes say that themselves
// (onnx.Origin). The list may only shrink.
var namesRead = map[string]string{
	"runtime/roles.go":           "a file without remat.roles may still follow the naming contract, P.grad and P.new",
	"planner/analysis/roles.go":  "a file without remat.roles may still follow the naming contract, P.grad and P.new",
	"runtime/feeds.go":           "in:NAME and param:NAME are how a user's file names what it feeds",
	"runtime/predict/known.go":   "ONNX Runtime names the casts and copies that it inserts, and notes nothing",
	"runtime/ort/profile.go":     "names of events in ONNX Runtime's profile",
	"runtime/npy.go":             "names of files in an archive",
	"runtime/install/install.go": "names of files in an archive",
	"onnx/names.go":              "a name for a node that has none",
	"models/load.go":             "names of tensors in GPT-2's published weights",
	"rewrite/grad/backward.go":   "a new name does not repeat the prefix of the old one",
	"rewrite/grad/engine.go":     "a new name does not repeat the prefix of the old one",
	"rewrite/grad/names.go":      "which exporter wrote a file is told by its names alone",
	"rewrite/grad/select.go":     "patterns of --params and --frozen match names",
	"rewrite/grad/decide.go":     "patterns of --params match names",
	"internal/pipeline/parts.go": "membership in a list of names",

	"internal/pipeline/fitsplit.go": "membership in a list of names",
}

// TestNamesTellNothing: no pass learns from a name what made a node.
func TestNamesTellNothing(t *testing.T) {
	found := map[string][]string{}
	for path, text := range production(t) {
		found[path] = parsesName.FindAllString(text, -1)
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		if len(found[path]) > 0 && namesRead[path] == "" && !strings.HasPrefix(path, "scripts/") {
			t.Errorf("%s takes a name apart: %s", path, strings.Join(found[path], "; "))
		}
	}
	for path := range namesRead {
		if found[path] == nil {
			t.Errorf("%s takes no name apart any more: take it off the list", path)
		}
	}
}
