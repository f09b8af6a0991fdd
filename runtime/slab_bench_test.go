package runtime

import (
	"context"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/onnx-remat/remat/runtime/ort"
)

// BenchmarkSlabBesideArena runs a step in its slab and one in ONNX Runtime's arena, set up
// as suits it, in turns: the medians of both in seconds of a processor, and their ratio.
// REMAT_SLAB_FILE names another file than a sample.
func BenchmarkSlabBesideArena(b *testing.B) {
	path := os.Getenv("REMAT_SLAB_FILE")
	if path == "" {
		path = samples + "/gpt2_tiny.dyn.onnx"
	}
	s, err := testEngine.OpenFile(path, Options{Level: 1, Threads: 1, Provider: ort.CPU, LR: 1e-3})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ctx := context.Background()
	step := func() {
		if _, err := s.Step(ctx); err != nil {
			b.Fatal(err)
		}
	}
	step()
	events, err := s.ort.DeviceCounter().Events()
	if err != nil {
		b.Fatal(err)
	}
	setup, _ := s.planArena(s.allocated, requests(events))
	so := s.options.session(s.Provider)
	so.Allocator = ort.OwnArena
	so.Arena = ort.ArenaConfig{FirstChunk: setup.FirstChunk, MaxExtend: setup.MaxExtend, MaxDead: setup.MaxDead}
	second, err := s.open.session(so)
	if err != nil {
		b.Fatal(err)
	}
	defer second.Close()
	bound, err := s.bind(second)
	if err != nil {
		b.Fatal(err)
	}
	defer bound.Close()
	arena := func() {
		if err := s.bindOutputs(bound, func(in *input) (*ort.Value, error) {
			if in.inPlace {
				return in.value, nil
			}
			return nil, nil
		}); err != nil {
			b.Fatal(err)
		}
		if err := second.Run(ctx, bound, ""); err != nil {
			b.Fatal(err)
		}
	}
	arena()
	took := [2][]float64{}
	for i := 0; b.Loop(); i++ {
		for k := range 2 {
			which := (i + k) % 2
			before := processorTime(b)
			[]func(){step, arena}[which]()
			took[which] = append(took[which], (processorTime(b) - before).Seconds())
		}
	}
	median := func(list []float64) float64 {
		slices.Sort(list)
		return list[len(list)/2]
	}
	inSlab, inArena := median(took[0]), median(took[1])
	b.ReportMetric(inSlab, "slab-s")
	b.ReportMetric(inArena, "arena-s")
	b.ReportMetric(inSlab/inArena, "slab/arena")
}

// processorTime is what this process has had of processors.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
