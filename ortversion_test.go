package remat

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/runtime/ortversion"
)

// madeFrom lists the files that name the release of ONNX Runtime that they were
// made from or are to be used with, and the text in which they do. A file that
// names another one than ortversion.Current is stale: make it again, or measure
// again what it says.
var madeFrom = map[string]string{
	"bench/requirements.txt":                  `onnxruntime==(\S+)`,
	"scripts/requirements.txt":                `onnxruntime==(\S+)`,
	"docs/cli.md":                             `"ort_version": "(\S+?)"`,
	"docs/gpu.md":                             `On H200s \(ONNX Runtime (\S+?),`,
	"docs/prediction.md":                      `Measured of (\S+):`,
	"docs/precision.md":                       `the kernels of ONNX Runtime (\S+)`,
	"internal/corpus/testdata/exceptions.txt": `in ONNX Runtime (\S+) on the CPU`,
	"onnx/traits/scratchconv.go":              `constants as in (\S+)\.\n`,
	"onnx/traits/cuda.go":                     `probe again\), (\S+)\.\n`,
	"runtime/predict/testdata/cuda.txt":       `ONNX Runtime (\S+), null device`,
	"ortmodel/arena.go":                       `BFCArena of ONNX Runtime (\S+?),`,
	"ortmodel/ortmodel.go":                    `Measured against ONNX Runtime (\S+?),`,
	"rewrite/precision/kernels/table.txt":     `^# Kernels of ONNX Runtime (\S+) by`,
	"rewrite/precision/precision.go":          `ONNX Runtime (\S+) leaves a pair of casts`,
	"runtime/idle.go":                         `core/optimizer near release\n// (\S+),`,
	"runtime/predict/known.go":                `everything else \((\S+)\)`,
	"runtime/predict/session.go":              `kernels, (\S+)\.`,
}

// triedWith lists the texts that say up to which release predictions were compared.
var triedWith = map[string]string{
	"README.md":        `have \(\S+ to (\S+)\)`,
	"docs/runtimes.md": `The newest that was tried is\s+(\S+\d):`,
}

// TestOneVersion fails where a table was made from another release than the one
// that is installed.
func TestOneVersion(t *testing.T) {
	if traits.MemoryVersion != ortversion.Current {
		t.Errorf("onnx/traits: the memory columns are those of %s, not of %s: run the probe of runtime/predict", traits.MemoryVersion, ortversion.Current)
	}
	allOf(t, madeFrom, ortversion.Current)
}

// TestNewestTried: what users read of the newest release is what was tried.
func TestNewestTried(t *testing.T) { allOf(t, triedWith, ortversion.Newest) }

// allOf holds the release that each file names, by its pattern, to the one given.
func allOf(t *testing.T, patterns map[string]string, release string) {
	t.Helper()
	for file, pattern := range patterns {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		if found == nil {
			t.Errorf("%s: nothing matches %s", file, pattern)
		} else if v := string(found[1]); v != release {
			t.Errorf("%s is of ONNX Runtime %s, not %s", file, v, release)
		}
	}
}

// TestVersionsAreListed finds files outside madeFrom that name a release of
// ONNX Runtime in full.
func TestVersionsAreListed(t *testing.T) {
	out, err := exec.Command("git", "grep", "-lF", "-e", ortversion.Current, "--", ".", ":!docs/results", ":!CHANGELOG.md", ":!*_test.go", ":!*testdata*").Output()
	if err != nil {
		t.Skip("not a git checkout") // as from an archive of the sources
	}
	for _, file := range strings.Fields(string(out)) {
		if _, ok := madeFrom[file]; !ok && !versionSources[file] {
			t.Errorf("%s names ONNX Runtime %s: use package ortversion, or list it in madeFrom", file, ortversion.Current)
		}
	}
}

// versionSources may name the release too: the constants themselves, and what
// is an example.
var versionSources = map[string]bool{
	"runtime/ortversion/ortversion.go": true,
	"onnx/traits/memory.go":            true, // compared above
	"runtime/ort/env.go":               true, // an example of a version
	"remat.go":                         true, // another
	"internal/pyort/pyort.go":          true, // an example of a path
}
