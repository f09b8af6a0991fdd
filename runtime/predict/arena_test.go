package predict

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime/ort"
)

// measureArena runs two steps under an arena that is set up as planned.
func measureArena(path string, o ort.SessionOptions, a Arena) (ort.Stats, error) {
	o.Allocator = ort.OwnArena
	o.Arena = ort.ArenaConfig{AsRequested: a.Setup.Strategy == 1, FirstChunk: a.Setup.FirstChunk,
		MaxExtend: a.Setup.MaxExtend, MaxDead: a.Setup.MaxDead}
	s, err := testEnv.NewSession(path, o)
	if err != nil {
		return ort.Stats{}, err
	}
	defer s.Close()
	for range 2 {
		if err := runOnce(s); err != nil {
			return ort.Stats{}, err
		}
	}
	return s.HostStats()
}

func runOnce(s *ort.Session) error {
	b, err := s.NewBinding()
	if err != nil {
		return err
	}
	defer b.Close()
	values, err := bindAll(s, b, nil)
	defer func() {
		for _, v := range values {
			v.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := s.Run(context.Background(), b, ""); err != nil {
		return err
	}
	outputs, err := b.Outputs()
	for _, o := range outputs {
		o.Value.Close()
	}
	return err
}

// wasteful lists samples of which best fit keeps more than a tenth unused under
// every setup tried, with the share that it may keep. It may only shrink.
var wasteful = map[string]float64{
	"mlp20.EMA.onnx level 1":         0.17,
	"gpt2_small_b1s128.onnx level 1": 0.27,
}

// What the arena takes from the system and hands out is predicted for every
// sample and level to the byte; under the setup chosen it takes at most a tenth
// more than is live, and 256 bytes for each buffer that is alive.
func TestArena(t *testing.T) {
	for _, path := range samples(t) {
		if strings.Contains(path, "gpt2_small") {
			continue // TestBigArena
		}
		path := static(t, path, t.TempDir())
		for _, level := range []int{0, 1, 99} {
			name := fmt.Sprintf("%s level %d", filepath.Base(path), level)
			if err := checkArena(t, path, ort.SessionOptions{Threads: 1, Level: level}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestBigArena(t *testing.T) {
	if testing.Short() {
		t.Skip("moves gigabytes")
	}
	if err := checkArena(t, "../../testdata/models/joint/gpt2_small_b1s128.onnx", ort.SessionOptions{Level: 1, Threads: 1}); err != nil {
		t.Error(err)
	}
}

func checkArena(t *testing.T, path string, o ort.SessionOptions) error {
	p, err := asExecuted(path, t.TempDir(), o)
	if err != nil {
		return err
	}
	a := p.Arena()
	st, err := measureArena(path, o, a)
	if err != nil {
		return err
	}
	if st.Reserved != a.Reserved || st.MaxInUse != a.Peak {
		return fmt.Errorf("reserved %d, predicted %d; in use %d, predicted %d; %+v", st.Reserved, a.Reserved, st.MaxInUse, a.Peak, a.Setup)
	}
	live := p.LivePeak + p.Session.Allocated()
	units := int64(256 * len(p.Trace.AtPeak()))
	share := float64(st.Reserved-units)/float64(live) - 1
	name := fmt.Sprintf("%s level %d", filepath.Base(path), o.Level)
	t.Logf("%s: live %d, reserved %d: %+.3f", name, live, st.Reserved, share)
	if allowed, ok := wasteful[name]; share > max(0.1, allowed) || ok && share <= 0.1 {
		return fmt.Errorf("reserved %d for %d live and %d of rounding: %.3f more, allowed %.3f", st.Reserved, live, units, share, max(0.1, allowed))
	}
	return nil
}

// TestArenaOfTransposedFilters: ConvTranspose takes its copy of constant filters
// from the arena, before the first step, and none where either side is one.
func TestArenaOfTransposedFilters(t *testing.T) {
	weight := func(name string, dims ...int) string {
		n := 1
		for _, d := range dims {
			n *= d
		}
		return fmt.Sprintf("init %s float32%s = [%s1]\n", name, strings.ReplaceAll(fmt.Sprint(dims), " ", ", "), strings.Repeat("0, ", n-1))
	}
	for name, body := range map[string]string{
		"plain":      weight("w", 8, 4, 5, 5) + "y = ConvTranspose(x, w)",
		"grouped":    weight("w", 8, 4, 5, 5) + "y = ConvTranspose(x, w) {group=2}",
		"depthwise":  weight("w", 8, 4, 5, 5) + "y = ConvTranspose(x, w) {group=8}",
		"one by one": weight("w", 8, 1, 1, 1) + "y = ConvTranspose(x, w)",
		"two":        weight("w", 8, 4, 5, 5) + weight("u", 4, 3, 2, 2) + "z = ConvTranspose(x, w)\nv = Relu(z)\ny = ConvTranspose(v, u)",
	} {
		m, err := onnx.Parse("model ir=10 opset=20\ngraph g {\nin x float32[1,8,3,3]\n" + body + "\nout y float32\n}")
		if err != nil {
			t.Fatal(err)
		}
		path, o := filepath.Join(t.TempDir(), "m.onnx"), ort.SessionOptions{Threads: 1, Level: 1}
		if err := m.Save(path); err != nil {
			t.Fatal(err)
		}
		p, err := asExecuted(path, t.TempDir(), o)
		if err != nil {
			t.Fatal(err)
		}
		real, err := measure(path, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		st, err := measureArena(path, o, p.Arena())
		if err != nil {
			t.Fatal(err)
		}
		if real.session != p.Session.Bytes() || st.Reserved != p.Arena().Reserved || st.MaxInUse != p.Arena().Peak {
			t.Errorf("%s: session %d, predicted %d; reserved %d, predicted %d; in use %d, predicted %d", name, real.session, p.Session.Bytes(),
				st.Reserved, p.Arena().Reserved, st.MaxInUse, p.Arena().Peak)
		}
	}
}
