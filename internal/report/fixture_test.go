package report

// The fixture: a transformer's step as an event list, shaped like GPT-2 at
// 1 x 1024 tokens. Sizes follow from the shapes; times are proportional to
// them. stash makes a step that keeps everything (every = 0) or only each
// every-th layer's output, recomputing the rest in the backward.

import (
	"fmt"
	"math"
	"slices"
)

type stepMaker struct {
	events []Event
	next   int
	live   map[string]int
	size   map[string]int64
	clock  float64
	phase  Phase
	layer  string
}

func (s *stepMaker) alloc(node, op, value string, c Category, bytes int64) {
	s.clock += float64(bytes) * 4e-10
	s.next++
	s.live[value], s.size[value] = s.next, bytes
	s.emit(node, op, value, c, bytes, s.next)
}

func (s *stepMaker) free(node, value string) {
	b, ok := s.live[value]
	if !ok {
		return
	}
	delete(s.live, value)
	s.emit(node, "", value, Activations, -s.size[value], b)
}

func (s *stepMaker) emit(node, op, value string, c Category, bytes int64, buffer int) {
	s.events = append(s.events, Event{Seconds: s.clock, Bytes: bytes, Buffer: buffer, Value: value,
		Node: node, Op: op, Layer: Text(s.layer), Category: c, Phase: s.phase})
}

// layerOps are the forward values of one block: name, operator, size in units
// of tokens x width floats.
var layerOps = []struct {
	name, op string
	units    int64
}{
	{"ln_1", "LayerNormalization", 1}, {"attn/qkv", "Gemm", 3}, {"attn/q", "Transpose", 1}, {"attn/k", "Transpose", 1},
	{"attn/v", "Transpose", 1}, {"attn/scores", "MatMul", 16}, {"attn/softmax", "Softmax", 16}, {"attn/context", "MatMul", 1},
	{"attn/merge", "Transpose", 1}, {"attn/proj", "Gemm", 1}, {"residual_1", "Add", 1}, {"ln_2", "LayerNormalization", 1},
	{"mlp/fc", "Gemm", 4}, {"mlp/gelu", "Gelu", 4}, {"mlp/proj", "Gemm", 1}, {"residual_2", "Add", 1},
}

const (
	fixtureTokens = 1024
	fixtureWidth  = 768
	fixtureUnit   = 4 * fixtureTokens * fixtureWidth
	fixtureLogits = 4 * fixtureTokens * 50257
	fixtureEmbed  = 4 * 50257 * fixtureWidth
)

// forwardLayer emits one block's forward; prefix tells a recomputation.
func (s *stepMaker) forwardLayer(l int, prefix string) {
	for i, o := range layerOps {
		node := fmt.Sprintf("%s/h.%d/%s/%s", prefix, l, o.name, o.op)
		if i == len(layerOps)-1 && prefix != "" {
			continue
		}
		if o.op == "Softmax" {
			s.alloc(node, o.op, node+"#0", Temporaries, fixtureUnit/2)
			s.free(node, node+"#0")
		}
		s.alloc(node, o.op, fmt.Sprintf("h.%d.%s", l, o.name), Activations, o.units*fixtureUnit)
	}
}

// dropLayer releases a block's stash except its output.
func (s *stepMaker) dropLayer(l int) {
	for _, o := range layerOps[:len(layerOps)-1] {
		s.free(fmt.Sprintf("/h.%d/residual_2/Add", l), fmt.Sprintf("h.%d.%s", l, o.name))
	}
}

func (s *stepMaker) backwardLayer(l int) {
	for i := len(layerOps) - 1; i >= 0; i-- {
		o := layerOps[i]
		node := fmt.Sprintf("remat/grad/h.%d/%s", l, o.name)
		s.alloc(node, o.op, fmt.Sprintf("d.h.%d.%s", l, o.name), Activations, o.units*fixtureUnit)
		if o.op == "Gemm" || o.op == "LayerNormalization" {
			weight := fmt.Sprintf("transformer.h.%d.%s.weight", l, o.name)
			s.alloc(node+"/weight", "Gemm", weight+".grad", Gradients, max(4*fixtureWidth, o.units*4*fixtureWidth*fixtureWidth/4*4))
		}
		s.free(node, fmt.Sprintf("h.%d.%s", l, o.name))
		if i+1 < len(layerOps) {
			s.free(node, fmt.Sprintf("d.h.%d.%s", l, layerOps[i+1].name))
		}
	}
	if l+1 < 1<<20 {
		s.free(fmt.Sprintf("remat/grad/h.%d", l), fmt.Sprintf("d.h.%d.ln_1", l+1))
	}
}

func stash(layers, every int) *Timeline {
	s := &stepMaker{live: map[string]int{}, size: map[string]int64{}, phase: Forward, layer: "wte"}
	s.alloc("/wte/Gather", "Gather", "embed", Activations, fixtureUnit)
	for l := range layers {
		s.layer = fmt.Sprintf("h.%d", l)
		s.forwardLayer(l, "")
		if every > 0 {
			s.dropLayer(l)
			if l > 0 && l%every != 0 {
				s.free("/drop", fmt.Sprintf("h.%d.residual_2", l-1))
			}
		}
	}
	s.layer = "lm_head"
	s.alloc("/lm_head/MatMul", "MatMul", "logits", Activations, fixtureLogits)
	s.alloc("/loss/LogSoftmax", "LogSoftmax", "log_prob", Activations, fixtureLogits)
	s.free("/loss/LogSoftmax", "logits")
	s.phase = Backward
	s.alloc("remat/grad/lm_head", "Sub", "d.logits", Activations, fixtureLogits)
	s.free("remat/grad/lm_head", "log_prob")
	s.alloc("remat/grad/lm_head/weight", "Gemm", "transformer.wte.weight.grad", Gradients, fixtureEmbed)
	s.free("remat/grad/lm_head", "d.logits")
	for l := layers - 1; l >= 0; l-- {
		s.layer = fmt.Sprintf("h.%d", l)
		if every > 0 && (l+1)%every == 0 || every > 0 && l == layers-1 {
			for k := l / every * every; k <= l; k++ {
				s.forwardLayer(k, "remat/recompute")
			}
		}
		s.backwardLayer(l)
	}
	s.phase = Update
	s.layer = ""
	for _, v := range slices.Sorted(func(yield func(string) bool) {
		for v := range s.live {
			if !yield(v) {
				return
			}
		}
	}) {
		s.clock += 2e-4
		s.free("optimizer/"+v, v)
	}
	return &Timeline{Base: Sizes{Parameters: 497759232, State: 2 * 497759232, Feeds: 2 * 8 * fixtureTokens, Session: 3 << 20}, Events: s.events}
}

// fixtureRun is a whole run document around a timeline.
func fixtureRun(label string, layers, every int, slower float64) *Run {
	t := stash(layers, every)
	r := &Run{Model: "out/" + label + ".onnx", Label: Text(label), Provider: "cpu", ORTVersion: "1.31.1", Threads: 2, OptLevel: 1, LossOutput: "loss"}
	r.SetTimeline(t)
	live := r.Peak.LiveBytes
	r.Memory = Memory{
		ParameterBytes: t.Base.Parameters, StateBytes: t.Base.State, FeedBytes: t.Base.Feeds, OutputBytes: 4,
		SessionBytes: new(t.Base.Session), PredictedSessionBytes: new(t.Base.Session),
		LivePeakBytes: new(live), TotalPeakBytes: new(live + t.Base.Total()), PredictedLivePeakBytes: new(live),
		ArenaPeakBytes: new(live + live/31), ArenaReservedBytes: new(live + live/11), ReservedBytes: new(live + live/101), RSSPeakBytes: new(live + t.Base.Total() + 211<<20),
		PredictedReservedBytes: new(live + live/101), PredictedArenaReservedBytes: new(live + live/11 - 4096),
	}
	var times []float64
	for i := range 50 {
		s := (5.4 + 0.05*math.Sin(float64(i*i))) * slower
		times = append(times, s)
		loss := 10.9*math.Exp(-float64(i)/18) + 3.1 + 0.12*math.Sin(float64(3*i))
		r.Steps = append(r.Steps, Step{Seconds: &s, Outputs: map[string]Float{"loss": Float(loss)}})
	}
	r.StepSeconds = NewSpread(times)
	for i := range 10 {
		share := 0.19 / float64(i+1)
		node := fmt.Sprintf("/transformer/h.%d/mlp/c_fc/Gemm", i)
		r.TopTime = append(r.TopTime, OpTime{Node: node, Op: "Gemm", Layer: Text(fmt.Sprintf("h.%d", i)), Seconds: share * r.StepSeconds.Median, Share: share})
		r.TopMemory = append(r.TopMemory, OpMemory{Node: fmt.Sprintf("/transformer/h.%d/attn/Softmax", i), Op: "Softmax", Layer: Text(fmt.Sprintf("h.%d", i)), Bytes: int64(share * float64(live)), Share: share})
	}
	if every > 0 {
		r.Plan = fixturePlan(label, layers, every, live)
	}
	return r
}

func fixturePlan(strategy string, layers, every int, after int64) *Plan {
	before := stash(layers, 0).Peak().LiveBytes
	p := &Plan{
		Strategy: strategy, RecomputedNodes: layers * 15, FLOPs: 874_000_000_000, RecomputeFLOPs: 262_000_000_000, Overhead: 0.2998,
		PeakBytesBefore: before, PeakBytesScheduled: new(before - before/9), PeakBytesAfter: after,
		Saving: Float(1 - float64(after)/float64(before)), TheorySaving: new(Float(1 - 1/math.Sqrt(float64(layers)))),
		LowerBoundBytes: new(after - after/5), SolverSeconds: 0.41, PlanSeconds: 1.2, BudgetBytes: new(int64(1 << 30)), Feasible: true,
	}
	for l := range layers {
		boundary := l%every == every-1
		layer := PlanLayer{Layer: fmt.Sprintf("h.%d", l), Boundary: boundary, RecomputedNodes: 15, RecomputedBytes: 38 * fixtureUnit}
		if boundary {
			layer.KeptValues, layer.KeptBytes = 1, fixtureUnit
			p.Boundaries = append(p.Boundaries, fmt.Sprintf("h.%d.residual_2", l))
			p.Kept = append(p.Kept, fmt.Sprintf("h.%d.residual_2", l))
		}
		p.Layers = append(p.Layers, layer)
	}
	for i, s := range []string{"none", "every=6", "sqrt", "every=2", "every=1", "selective", "optimal", "full"} {
		p.Pareto = append(p.Pareto, ParetoPoint{Strategy: s, PeakBytes: int64(float64(before) * []float64{1, .62, .48, .39, .35, .55, .33, .41}[i]),
			Overhead: Float([]float64{0, .33, .30, .31, .32, .04, .21, .33}[i])})
	}
	MarkDominated(p.Pareto)
	p.Notes = []Note{{What: "recompute", Requested: layers * 15, Applied: layers * 15}, {What: "barrier", Requested: 12, Applied: 11, Reason: "h.11: its input is a graph output"}}
	return p
}

// fixtureCompare is three variants of GPT-2 124M.
func fixtureCompare() *Compare {
	c := &Compare{Models: []*Run{fixtureRun("baseline", 12, 0, 1), fixtureRun("checkpointing (sqrt)", 12, 3, 1.12), fixtureRun("checkpointing (optimal)", 12, 1, 1.083)}}
	zero := Float(0)
	for _, m := range c.Models[1:] {
		c.Pairs = append(c.Pairs, NewPair(c.Models[0], m, Difference{Loss: &zero, Gradient: &zero, RelativeGradient: &zero, BitIdentical: new(true), Tolerance: new(Float(1e-6)), WithinTolerance: new(true)}))
	}
	return c
}

// hostile are names that try to end scripts, strings, tags and terminals.
const hostile = "</script><script>alert(1)</script>\"'`${x}\u2028\x1b[31m\u202e{b}<img src=x onerror=alert(1)>"

// fixtureHostile is a comparison full of hostile names, with a failed variant.
func fixtureHostile() *Compare {
	c := &Compare{Models: []*Run{fixtureRun(hostile, 3, 0, 1), fixtureRun(hostile, 3, 1, 1.2)}}
	for _, m := range c.Models {
		for i := range m.Timeline.Events {
			e := &m.Timeline.Events[i]
			e.Value, e.Node, e.Layer = hostile+e.Value, hostile+e.Node, Text(hostile)
		}
		m.SetTimeline(m.Timeline)
		m.TopTime[0].Node, m.TopMemory[0].Op = hostile, hostile
	}
	c.Models[1].Plan.Layers[0].Layer, c.Models[1].Plan.Pareto[0].Strategy = hostile, hostile
	c.Models[1].Plan.Notes[0].Reason = hostile
	failed := &Run{Model: hostile, Error: "out of memory: " + hostile, Provider: "cuda"}
	c.Models = append(c.Models, failed)
	for _, m := range c.Models[1:] {
		c.Pairs = append(c.Pairs, NewPair(c.Models[0], m, Difference{}))
	}
	return c
}

func fixturePage() *Page {
	return &Page{Title: "GPT-2 124M, 1 × 1024 tokens", Command: "remat compare baseline.onnx sqrt.onnx optimal.onnx --steps 50 --html report.html",
		Facts: Facts{{Key: "provider", Value: "cpu"}, {Key: "ONNX Runtime", Value: "1.31.1"}, {Key: "threads", Value: "2"}, {Key: "optimization level", Value: "1"}}, Compare: fixtureCompare()}
}
