package pipeline

// Joint graphs as scripts/export_joint.py makes them, too many and too large to
// be checked in:
//
//	scripts/export_joint.py FOLDER
//	go test ./internal/pipeline -run TestExportedJoint -joint FOLDER/'*.onnx'
//
// Their names tell what is to be found in them.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/planner"
	"github.com/onnx-remat/remat/planner/analysis"
	"github.com/onnx-remat/remat/runtime"
	"github.com/onnx-remat/remat/runtime/ort"
)

var (
	jointFiles  = flag.String("joint", "", "joint graphs to take through every strategy, a pattern")
	jointLevels = flag.String("joint-levels", "0,1,99", "levels of optimization for them")
	jointPlans  = flag.String("joint-plans", "none sqrt full every=2 segments=3 selective optimal optimal:60 optimal:40", "strategies, with a budget in percent after a colon")
)

// TestExportedJoint finds in each graph what its maker put there, and takes it
// through every strategy: the bits of the plain file, nearly the values of the
// graph given, the predicted peak.
func TestExportedJoint(t *testing.T) {
	if *jointFiles == "" {
		t.Skip("no graphs: see -joint")
	}
	paths, err := filepath.Glob(*jointFiles)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files %s: %v", *jointFiles, err)
	}
	e := engine(t)
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) { exportedJoint(t, e, path) })
	}
}

func exportedJoint(t *testing.T, e *runtime.Engine, path string) {
	m, err := Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	feeds, err := runtime.ReadNPZ(strings.TrimSuffix(path, ".onnx") + ".npz")
	if err != nil {
		feeds = nil
	}
	o := Options{Provider: ort.CPU, Threads: 2, Dims: dimsOf(m, feeds)}
	for i, word := range strings.Split(*jointLevels, ",") {
		if o.OptLevel, err = strconv.Atoi(word); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		p, err := NewPlanner(e, m, o)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			foundRoles(t, filepath.Base(path), m, p.base().Analysis)
		}
		t.Logf("level %d: prepared in %.2f s, %d operators, %d layers, before %d, scheduled %d", o.OptLevel, time.Since(start).Seconds(),
			len(p.Problem().Ops), p.Problem().LayerCount(), p.Before.LivePeak, p.Scheduled)
		jointStrategies(t, e, m, p, feeds)
	}
}

// foundRoles compares the roles with the names of the script.
func foundRoles(t *testing.T, file string, m *onnx.Model, a *analysis.Analysis) {
	t.Helper()
	if a.Roles.Loss != "loss" {
		t.Errorf("loss: %q", a.Roles.Loss)
	}
	for _, v := range m.Graph.Outputs {
		var got, in string
		if name, ok := strings.CutPrefix(v.Name, "grad_"); ok {
			in = "param_" + name
			got = a.Roles.Grad[in]
		} else if name, ok := strings.CutPrefix(v.Name, "new_"); ok {
			in = name
			got = a.Roles.New[in]
		} else {
			continue
		}
		if got != v.Name {
			t.Errorf("%q: what belongs to it is %q, found %q", in, v.Name, got)
		}
	}
	parts := regexp.MustCompile(`^([^.]+)\.(\d+)\.`).FindStringSubmatch(file)
	if parts == nil {
		return
	}
	want, _ := strconv.Atoi(parts[2])
	if parts[1] == "bart" || parts[1] == "t5" {
		want *= 2
	}
	if got := a.Problem.LayerCount(); got != want && !strings.HasPrefix(parts[1], "resnet") {
		t.Errorf("%d layers found, want %d", got, want)
	}
}

func jointStrategies(t *testing.T, e *runtime.Engine, m *onnx.Model, p *Planner, feeds map[string]runtime.Tensor) {
	a := p.base().Analysis
	roles := runtime.Roles{Loss: a.Roles.Loss, Grad: a.Roles.Grad, New: a.Roles.New}
	level := p.opts.OptLevel
	original := executeAt(t, e, m, p.opts, 1, feeds, roles)
	var plain result
	for _, word := range strings.FieldsFunc(*jointPlans, func(r rune) bool { return r == 32 || r == 37 }) {
		strategy, percent, _ := strings.Cut(word, ":")
		budget := int64(0)
		if percent != "" {
			share, err := strconv.Atoi(percent)
			if err != nil {
				t.Fatal(err)
			}
			budget = p.Before.LivePeak * int64(share) / 100
		}
		t.Run(fmt.Sprintf("%s at %d", word, level), func(t *testing.T) {
			start := time.Now()
			r, err := p.Plan(strategy, budget)
			var inf *planner.InfeasibleError
			if errors.As(err, &inf) {
				t.Logf("infeasible: %d wanted, least %d, bound %d, %.2f s", budget, inf.Least, inf.LowerBound, time.Since(start).Seconds())
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			took := time.Since(start)
			got := executeAt(t, e, r.Model, p.opts, 5, feeds, roles)
			for i, peak := range got.peaks {
				if peak != r.Peak {
					t.Errorf("run %d: live peak %d, predicted %d", i+1, peak, r.Peak)
				}
			}
			if word == "none" {
				plain = got
			}
			worst, where := 0.0, ""
			for name, want := range original.outputs {
				kind := m.Graph.Value(name).Type.DType
				if d := apart(kind, want, got.outputs[name]); d > worst {
					worst, where = d, name
				}
				if bits := plain.outputs[name]; r.Variant.Divided.Loss == 0 && bits != nil && !bytes.Equal(bits, got.outputs[name]) {
					t.Errorf("output %s is not the plain graph's to the bit, %.2g apart", name, apart(kind, bits, got.outputs[name]))
				}
			}
			if worst > 1e-5 {
				t.Errorf("output %s is %.2g from the original's", where, worst)
			}
			t.Logf("%-12s at %2d: peak %10d of %10d (%.3f of scheduled), overhead %.3f, %d recomputed, bound %d, chunk %d tile %d, %.2f s, off by %.1g", word, level,
				r.Peak, p.Before.LivePeak, float64(r.Peak)/float64(p.Scheduled), r.overhead(), recomputedNodes(r), r.LowerBound,
				r.Variant.Divided.Loss, r.Variant.Again().Tile, took.Seconds(), worst)
		})
	}
}

func recomputedNodes(r *File) int {
	sum := 0
	for _, n := range r.Plan.Recomputed(r.Problem()) {
		sum += n
	}
	return sum
}

func executeAt(t *testing.T, e *runtime.Engine, m *onnx.Model, o Options, runs int, feeds map[string]runtime.Tensor, roles runtime.Roles) result {
	t.Helper()
	s, err := e.Open(m, runtime.Options{Level: o.OptLevel, Threads: 2, Provider: ort.CPU, Feeds: feeds, Seed: 7, Dims: o.Dims, Roles: &roles, Outputs: o.Outputs})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return steps(t, s, runs, func(int, int64) {})
}

// apart is the largest difference as a share of the largest magnitude; of a
// type that is not float32, 1 where the bits differ.
func apart(kind onnx.DType, a, b []byte) float64 {
	if bytes.Equal(a, b) {
		return 0
	}
	if kind != onnx.Float32 || len(a) != len(b) {
		return 1
	}
	most, diff := 0.0, 0.0
	for ; len(a) >= 4; a, b = a[4:], b[4:] {
		x := float64(math.Float32frombits(binary.LittleEndian.Uint32(a)))
		y := float64(math.Float32frombits(binary.LittleEndian.Uint32(b)))
		most, diff = max(most, math.Abs(x)), max(diff, math.Abs(x-y))
	}
	return diff / max(most, 1e-30)
}
