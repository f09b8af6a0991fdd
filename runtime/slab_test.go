package runtime

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/ortmodel"
	"github.com/onnx-remat/remat/runtime/ort"
)

// TestSlab: from the second step on every large block of a step has its place, and the
// outputs have the same bits.
func TestSlab(t *testing.T) {
	placed := 0
	for _, path := range sampleModels(t) {
		o := Options{Level: 1, Threads: 1, Provider: ort.CPU, Feeds: readSample(t, path)}
		want := stepsOf(t, path, o, func(s *Session) { s.placed = true })
		got := stepsOf(t, path, o, nil)
		for i := range want {
			if want[i].astray != 0 || got[i].astray != 0 {
				t.Errorf("%s, step %d: %d bytes are astray", filepath.Base(path), i+1, got[i].astray)
			}
			if got[i].bits != want[i].bits {
				t.Errorf("%s, step %d: other bits in a slab", filepath.Base(path), i+1)
			}
			if got[i].live != want[i].live {
				t.Errorf("%s, step %d: %d bytes live, %d without a slab", filepath.Base(path), i+1, got[i].live, want[i].live)
			}
		}
		if got[2].slab > 0 {
			placed++
		}
	}
	if placed < 3 {
		t.Errorf("only %d samples ran in a slab", placed)
	}
}

// TestSlabIsDisbelieved: whatever places a step is given, it computes the same.
func TestSlabIsDisbelieved(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	path := sampleModels(t)[0]
	o := Options{Level: 1, Threads: 2, Provider: ort.CPU, Feeds: readSample(t, path), Trace: true}
	want := stepsOf(t, path, o, func(s *Session) { s.placed = true })
	s, err := testEngine.OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	step, err := s.Step(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int64
	for _, e := range step.Trace {
		if e.Alloc {
			sizes = append(sizes, e.Bytes)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const slab = 1 << 20
	astray := int64(0)
	for name, place := range map[string]func(i int) (bytes, offset int64){
		"all in one place":   func(i int) (int64, int64) { return sizes[i], 0 },
		"one over the other": func(i int) (int64, int64) { return sizes[i], int64(i) * 64 },
		"at random":          func(i int) (int64, int64) { return sizes[i], r.Int64N(slab/128) * 64 },
		"of another step":    func(i int) (int64, int64) { return sizes[(i+7)%len(sizes)], int64(i) * 64 },
		"of no step":         func(i int) (int64, int64) { return 1 + r.Int64N(1<<15), r.Int64N(slab/128) * 64 },
	} {
		got := stepsOf(t, path, o, func(s *Session) {
			s.placed = true
			places := make([]ort.Place, len(sizes))
			for i := range places {
				places[i].Bytes, places[i].Offset = place(i)
				if places[i].Bytes+places[i].Offset > slab {
					places[i].Offset = -1
				}
			}
			if err := s.ort.DeviceCounter().Place(places, slab); err != nil {
				t.Fatal(err)
			}
		})
		for i := range want {
			if got[i].bits != want[i].bits || got[i].live != want[i].live {
				t.Errorf("%s, step %d: other bits or another peak", name, i+1)
			}
			astray += got[i].astray
		}
	}
	t.Logf("%d bytes astray", astray)
}

// TestPlaceIsRefused: a place outside the slab, or one that no block can have.
func TestPlaceIsRefused(t *testing.T) {
	s, err := testEngine.OpenFile(sampleModels(t)[0], Options{Provider: ort.CPU})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, p := range [][2]int64{{64, 32}, {0, 0}, {-1, 0}, {4097, 0}, {64, 4096}, {1 << 62, 1 << 62}, {64, 1 << 62}} {
		if err := s.ort.DeviceCounter().Place([]ort.Place{{Bytes: p[0], Offset: p[1]}}, 4096); err == nil {
			t.Errorf("%v is accepted", p)
		}
	}
	slab := ortmodel.HostSlab.Pack([]ortmodel.Request{{ID: 1, Bytes: 5}, {ID: 7, Bytes: 1 << 20, Alloc: true}})
	if err := s.Place(&slab); err != nil {
		t.Error(err)
	}
}

type slabStep struct {
	bits               string
	live, astray, slab int64
}

// stepsOf are three steps of a model, its session prepared.
func stepsOf(t *testing.T, path string, o Options, prepare func(*Session)) []slabStep {
	t.Helper()
	s, err := testEngine.OpenFile(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	if prepare != nil {
		prepare(s)
	}
	var steps []slabStep
	for range 3 {
		step, err := s.Step(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		bits := ""
		for _, out := range step.Outputs {
			bits += out.Name + string(out.Data)
		}
		steps = append(steps, slabStep{bits, step.LivePeakBytes, step.AstrayBytes, s.Memory().SlabBytes})
	}
	return steps
}

// TestSlabText: a table is written where something lies in a slab, and the requests are
// not too many; what is written can be read.
func TestSlabText(t *testing.T) {
	// One request after the other, each in the place of the one before.
	packed := func(n int, last int64) *ortmodel.Slab {
		slab := &ortmodel.Slab{}
		for i := range n {
			bytes := int64(8)
			if i == n-1 {
				bytes = last
			}
			slab.Offset, slab.Bytes, slab.Until = append(slab.Offset, 0), append(slab.Bytes, bytes), append(slab.Until, i+1)
			slab.Size = max(64, last)
		}
		return slab
	}
	for _, c := range []struct {
		n       int
		last    int64
		written bool
	}{{0, 0, false}, {9, 8, true}, {9, 4096, true}, {ort.MaxSlabRequests, 4096, true}, {ort.MaxSlabRequests + 1, 4096, false}} {
		text := SlabText(packed(c.n, c.last), "graph")
		if (text != "") != c.written {
			t.Errorf("%d requests, one of %d bytes: %.40q", c.n, c.last, text)
		}
		if text == "" {
			continue
		}
		table, err := ort.ReadSlab(text)
		if err != nil || len(table.Places) != c.n || table.Size != max(64, c.last) || table.Graph != "graph" {
			t.Errorf("%d requests, one of %d bytes: %v", c.n, c.last, err)
		}
	}
}

// TestSlabOnTheDevice: a rehearsed step lies in one slab of the device's memory from the
// second on, and one whose places are wrong on purpose lies elsewhere, as large.
func TestSlabOnTheDevice(t *testing.T) {
	onlyRehearsed(t)
	path := sampleModels(t)[0]
	o := Options{Level: 1, Threads: 1, Provider: ort.CUDA, Feeds: readSample(t, path)}
	got := stepsOf(t, path, o, nil)
	for i, step := range got {
		if step.astray != 0 || step.live != got[0].live || step.slab < step.live {
			t.Errorf("step %d: %+v", i+1, step)
		}
	}
	for name, offset := range map[string]int64{"all in one place": 0, "beyond what the device gives": 1 << 50} {
		wrong := stepsOf(t, path, o, func(s *Session) {
			s.placed = true
			places := []ort.Place{{Bytes: 64, Offset: offset}, {Bytes: 128, Offset: offset}, {Bytes: 256, Offset: offset}}
			if err := s.ort.DeviceCounter().Place(places, offset+256); err != nil {
				t.Fatal(err)
			}
		})
		for i, step := range wrong {
			if step.live != got[i].live || step.astray == 0 {
				t.Errorf("%s, step %d: %+v, want %d live", name, i+1, step, got[i].live)
			}
		}
	}
}

// TestSlabGoesWithItsSession: the pages of a slab are the system's again once the session
// is closed.
func TestSlabGoesWithItsSession(t *testing.T) {
	if testEngine.device != nil {
		t.Skip("on the host")
	}
	const bytes = 64 << 20
	s := openText(t, `model ir=10 opset=20
graph g {
in x float32[1]
init shape int64[1] = [16777216]
y = Expand(x, shape)
z = Exp(y)
out z float32[16777216]
}
`, Options{Provider: ort.CPU, Level: 0, Threads: 1})
	for range 2 {
		if _, err := s.Step(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if m := s.Memory(); m.SlabBytes < bytes || m.AstrayBytes != 0 {
		t.Errorf("%+v", m)
	}
	before, err := RSS()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if after, err := RSS(); err != nil || before-after < bytes/10*9 {
		t.Errorf("%d bytes resident before, %d after: %v", before, after, err)
	}
}
