package planner

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
)

// What each stage of the planner is worth.
//
//	go test ./planner -run '^$' -bench Stages -benchtime 1x -problems DIR -stages-out F.json
//
// DIR holds problems, NAME.json each, as `remat plan -d dump=DIR` writes them;
// scripts/planner.py makes those of docs/results/planner.md and the page. Every
// problem is planned as it is and with one stage left out after the other. What
// is compared, always what is left out against the standard setting:
//
//	peak at equal work   mean over several amounts of repeated work of the least
//	                     peak found for it, as a share
//	work at equal peak   mean over several budgets of the work of the cheapest
//	                     plan within, in points of the plain step's work
//	plain, full          the judged peaks of none and full, as shares
//	seconds              of the processor, the search and the judge together

var (
	problemsDir = flag.String("problems", "", "folder of problems for the benchmark of stages")
	stagesOut   = flag.String("stages-out", "", "file that the benchmark of stages writes")
	stagesOnly  = flag.String("stages", "", "names of stages, comma-separated; empty: all")
	numbersToo  = flag.Bool("numbers", false, "the benchmark of stages also halves and doubles every number")
)

// A variation is the standard setting with something changed.
type variation struct {
	name   string
	change func(*tuning)
}

var stageNames = []struct {
	name  string
	stage stage
}{
	{"orders: greedy", stageGreedy}, {"orders: deep", stageDeep}, {"orders: deep, last first", stageDeepLast},
	{"orders: all three", stageGreedy | stageDeep | stageDeepLast},
	{"orders: sunk", stageSunk}, {"orders: inversions", stageInversions}, {"orders: deferrals", stageDeferrals},
	{"orders: control edges", stageInversions | stageDeferrals},
	{"orders: flips", stageFlips}, {"orders: prune", stagePrune},
	{"orders: lean ones", stageLean},
	{"search: orders", stageOrders}, {"search: seeds", stageSeeds}, {"search: polished seeds", stageSeedPolish},
	{"search: cuts at the peak", stageSweepPeak}, {"search: cuts evenly", stageSweepEven},
	{"search: both cuts", stageSweepPeak | stageSweepEven},
	{"search: kinds", stageKinds}, {"search: singles", stageSingles}, {"search: paths", stagePaths},
	{"search: erased shapes", stageErase}, {"search: brief holding", stageBrief},
	{"segments: polish", stagePolish}, {"legalizing", stageLegalize}, {"moves", stageMoves}, {"micro-batches rerolled", stageReroll},
}

// variations lists the standard setting and what is to be compared with it.
func variations() []variation {
	list := []variation{{"standard", func(*tuning) {}}}
	for _, s := range stageNames {
		list = append(list, variation{s.name, func(t *tuning) { t.off |= s.stage }})
	}
	if *numbersToo {
		list = append(list, numbers()...)
	}
	if *stagesOnly != "" {
		want := append(strings.Split(*stagesOnly, ","), "standard")
		list = slices.DeleteFunc(list, func(v variation) bool { return !slices.Contains(want, v.name) })
	}
	return list
}

// TestEveryStageCanBeLeftOut: without any one of them, and with each number halved
// or doubled, there is a plan that the judge accepts.
func TestEveryStageCanBeLeftOut(t *testing.T) {
	var named stage
	for _, s := range stageNames {
		named |= s.stage
	}
	if named != 2*stageReroll-1 {
		t.Errorf("stages %b have names, of %b", named, 2*stageReroll-1)
	}
	given := transformer(2, 64, 32, 16, 2)
	for _, v := range append(variations(), numbers()...) {
		p := given.WithOps(given.Ops)
		copied := standard
		p.tuned = &copied
		v.change(p.tuned)
		for _, strategy := range []string{"none", "full", "selective", "optimal"} {
			plan, err := Solve(p, strategy)
			if err != nil {
				t.Fatalf("%s: %s: %v", v.name, strategy, err)
			}
			if _, err := Judge(p, plan); err != nil {
				t.Errorf("%s: %s: %v", v.name, strategy, err)
			}
		}
	}
}

// numbers halves and doubles each number of a tuning.
func numbers() []variation {
	var list []variation
	fields := reflect.TypeFor[tuning]()
	for i := range fields.NumField() {
		if fields.Field(i).Name == "off" {
			continue
		}
		for _, factor := range []float64{0.5, 2} {
			list = append(list, variation{fmt.Sprintf("%s × %g", fields.Field(i).Name, factor), func(t *tuning) {
				scale(t, i, factor)
			}})
		}
	}
	return list
}

// A measured plan set is what one setting found for one problem.
type measured struct {
	Plain, Full, Selective, Least Verdict
	// Peaks and Work are the frontier, bytes and shares of the plain step's work.
	Peaks   []int64
	Work    []float64
	Seconds float64
}

func measure(b *testing.B, p *Problem, v variation) *measured {
	p = p.WithOps(p.Ops)
	t := standard
	v.change(&t)
	p.tuned = &t
	m := new(measured)
	start := processor()
	for _, s := range []struct {
		strategy string
		verdict  *Verdict
	}{{"none", &m.Plain}, {"full", &m.Full}, {"selective", &m.Selective}, {"optimal", &m.Least}} {
		plan, err := Solve(p, s.strategy)
		if err != nil && s.strategy == "full" {
			continue // no layers
		}
		if err != nil {
			b.Fatalf("%s: %s: %v", v.name, s.strategy, err)
		}
		if *s.verdict, err = Judge(p, plan); err != nil {
			b.Fatalf("%s: %s: %v", v.name, s.strategy, err)
		}
	}
	m.Seconds = processor() - start
	ix := p.indexed()
	for _, q := range ix.explored().front.points {
		m.Peaks, m.Work = append(m.Peaks, q.peak), append(m.Work, float64(q.work)/float64(ix.total))
	}
	return m
}

// processor returns the seconds of the processor that this process has used.
func processor() float64 {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		return math.NaN()
	}
	return float64(use.Utime.Nano()+use.Stime.Nano()) / 1e9
}

// peakAt returns the least peak for at most so much work.
func (m *measured) peakAt(work float64) int64 {
	k := sort.Search(len(m.Work), func(i int) bool { return m.Work[i] <= work })
	if k == len(m.Work) {
		k--
	}
	return m.Peaks[k]
}

// workAt returns the least work within a budget, the most there is where none keeps it.
func (m *measured) workAt(budget int64) float64 {
	k := sort.Search(len(m.Peaks), func(i int) bool { return m.Peaks[i] > budget })
	return m.Work[max(k-1, 0)]
}

// A loss is what leaving something out costs in one graph.
type loss struct {
	Graph string
	// Peak is the mean share that the peak rises by at equal work, Work the mean
	// share of the plain step that is repeated more at equal peak, Least the share
	// that the least peak rises by; Plain, Full and Selective are those of the
	// judge's peaks.
	Peak, Work, Least, Plain, Full, Selective, Seconds float64
	// EarlyNodes are the control edges more in the file of the least peak.
	EarlyNodes int
}

var workLevels = []float64{0, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5}

const budgetLevels = 16

func compare(graph string, on, off *measured) loss {
	l := loss{Graph: graph, Seconds: off.Seconds - on.Seconds, EarlyNodes: off.Least.EarlyNodes - on.Least.EarlyNodes}
	for _, w := range workLevels {
		l.Peak += (float64(off.peakAt(w))/float64(on.peakAt(w)) - 1) / float64(len(workLevels))
	}
	most := on.Peaks[len(on.Peaks)-1]
	least := max(on.Peaks[0], off.Peaks[0]) // which both can keep
	for i := range budgetLevels {
		budget := least + (most-least)*int64(i)/budgetLevels
		l.Work += (off.workAt(budget) - on.workAt(budget)) / budgetLevels
	}
	ratio := func(a, b int64) float64 {
		if b == 0 {
			return 0
		}
		return float64(a)/float64(b) - 1
	}
	l.Least = ratio(off.Peaks[0], on.Peaks[0])
	l.Plain, l.Full, l.Selective = ratio(off.Plain.Peak, on.Plain.Peak), ratio(off.Full.Peak, on.Full.Peak), ratio(off.Selective.Peak, on.Selective.Peak)
	return l
}

func BenchmarkStages(b *testing.B) {
	problems := stageProblems(b)
	all := variations()
	losses := map[string][]loss{}
	standards := map[string]*measured{}
	for b.Loop() {
		clear(losses)
		for _, name := range slices.Sorted(maps.Keys(problems)) {
			on := measure(b, problems[name], all[0])
			standards[name] = on
			b.Logf("%-28s %6d ops  plain %11d  full %11d  least %11d %+.3f  %.2f s", name, len(problems[name].Ops), on.Plain.Peak, on.Full.Peak, on.Peaks[0], on.Work[0], on.Seconds)
			for _, v := range all[1:] {
				losses[v.name] = append(losses[v.name], compare(name, on, measure(b, problems[name], v)))
			}
		}
	}
	for _, v := range all[1:] {
		b.Logf("%-28s %s", v.name, summary(losses[v.name]))
	}
	if *stagesOut != "" {
		text, err := json.MarshalIndent(map[string]any{"standard": standards, "without": losses}, "", " ")
		if err != nil {
			b.Fatal(err)
		}
		if err := os.WriteFile(*stagesOut, text, 0o666); err != nil {
			b.Fatal(err)
		}
	}
}

// summary says where leaving something out costs most.
func summary(list []loss) string {
	var text []string
	for _, f := range []struct {
		name string
		of   func(loss) float64
	}{
		{"peak", func(l loss) float64 { return l.Peak }}, {"work", func(l loss) float64 { return l.Work }},
		{"least", func(l loss) float64 { return l.Least }}, {"plain", func(l loss) float64 { return l.Plain }},
		{"full", func(l loss) float64 { return l.Full }},
	} {
		worst := slices.MaxFunc(list, func(a, b loss) int { return int(math.Copysign(1, f.of(a)-f.of(b))) })
		sum := 0.
		for _, l := range list {
			sum += f.of(l)
		}
		text = append(text, fmt.Sprintf("%s %+6.2f%% worst %+6.2f%% (%s)", f.name, 100*sum/float64(len(list)), 100*f.of(worst), worst.Graph))
	}
	seconds := 0.
	for _, l := range list {
		seconds += l.Seconds
	}
	return fmt.Sprintf("%s  %+.2f s", strings.Join(text, "  "), seconds)
}

// stageProblems reads the problems of the folder, or makes some.
func stageProblems(b *testing.B) map[string]*Problem {
	b.Helper()
	list := map[string]*Problem{}
	if *problemsDir == "" {
		return map[string]*Problem{"chain": chain(40), "transformer": transformer(6, 1024, 256, 256, 8)}
	}
	paths, err := filepath.Glob(filepath.Join(*problemsDir, "*.json"))
	if err != nil || len(paths) == 0 {
		b.Fatalf("%s: no problems: %v", *problemsDir, err)
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		p, err := ReadProblem(f)
		f.Close()
		if err != nil {
			b.Fatalf("%s: %v", path, err)
		}
		list[strings.TrimSuffix(filepath.Base(path), ".json")] = p
	}
	return list
}

// scale multiplies field i of a tuning.
func scale(t *tuning, i int, factor float64) {
	at := reflect.ValueOf(t).Elem().Field(i).Addr().UnsafePointer() // no setter for a field without a capital
	switch p := reflect.NewAt(reflect.TypeFor[tuning]().Field(i).Type, at).Interface().(type) {
	case *float64:
		*p *= factor
	case *int:
		*p = int(float64(*p) * factor)
	case *int64:
		*p = int64(float64(*p) * factor)
	}
}
