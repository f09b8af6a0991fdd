package predict

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/runtime/ort"
)

// samples are the models of testdata that stock ONNX Runtime runs.
func samples(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"*.onnx", "joint/*.onnx"} {
		files, err := filepath.Glob(filepath.Join("../../testdata/models", pattern))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	if len(all) < 15 {
		t.Fatalf("only %d samples in testdata/models", len(all))
	}
	return all
}

// providers are the models of those that sessions run on.
var providers = map[ort.Provider]*step.Provider{"": step.CPU, ort.CPU: step.CPU, ort.CUDA: step.CUDA}

// asExecuted predicts a file by the graph that ONNX Runtime makes of it.
func asExecuted(path, dir string, o ort.SessionOptions) (*Prediction, error) {
	saved := filepath.Join(dir, "saved.onnx")
	o.OptimizedPath = saved
	s, err := testEnv.NewSession(path, o)
	if err != nil {
		return nil, err
	}
	s.Close()
	original, err := onnx.Load(path)
	if err != nil {
		return nil, err
	}
	m, err := onnx.Load(saved)
	if err != nil {
		return nil, err
	}
	if _, err := infer.Model(m, infer.Options{}); err != nil {
		return nil, err
	}
	p, err := Predict(m, ForSaved(original, m, Options{Threads: o.Threads, On: providers[o.Provider]}))
	if err == nil && !p.Exact() {
		err = fmt.Errorf("not exact: %s", p.Unknown[0])
	}
	return p, err
}

// static gives every symbolic dimension of a model's inputs a number; the path
// is that of a copy in dir where there are such.
func static(t *testing.T, path, dir string) string {
	t.Helper()
	m, err := onnx.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	dims := map[string]int64{}
	for _, v := range m.Graph.Inputs {
		for _, d := range v.Type.Shape {
			for _, s := range d.Symbols() {
				dims[s] = int64(6 + len(dims))
			}
		}
	}
	if len(dims) == 0 {
		return path
	}
	if _, err := infer.Model(m, infer.Options{Dims: dims}); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, filepath.Base(path))
	if err := m.Save(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Every sample's peak, trace and session are predicted to the byte at each
// level, for one thread and for two.
func TestSamplesToTheByte(t *testing.T) {
	for _, path := range samples(t) {
		if strings.Contains(path, "gpt2_small") {
			continue // TestBigSample
		}
		path := static(t, path, t.TempDir())
		for _, o := range []ort.SessionOptions{
			{Level: 0, Threads: 1}, {Level: 0, Threads: 2}, {Level: 1, Threads: 1}, {Level: 99, Threads: 2},
		} {
			name := fmt.Sprintf("%s level %d threads %d", filepath.Base(path), o.Level, o.Threads)
			if err := checkSample(t, path, o); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestBigSample(t *testing.T) {
	if testing.Short() {
		t.Skip("moves gigabytes")
	}
	if err := checkSample(t, "../../testdata/models/joint/gpt2_small_b1s128.onnx", ort.SessionOptions{Level: 1, Threads: 2}); err != nil {
		t.Error(err)
	}
}

func checkSample(t *testing.T, path string, o ort.SessionOptions) error {
	p, err := asExecuted(path, t.TempDir(), o)
	if err != nil {
		return err
	}
	m, err := measure(path, o, nil)
	if err != nil {
		return err
	}
	if diff := compare(p, m, true); diff != "" {
		return fmt.Errorf("%s", diff)
	}
	if got := p.Session.Bytes(); got != m.session {
		return fmt.Errorf("session holds %d bytes, predicted %d", m.session, got)
	}
	return nil
}

// The order is that of the profile, from the file alone.
func TestSampleOrder(t *testing.T) {
	for _, path := range samples(t) {
		if strings.Contains(path, "gpt2_small") {
			continue
		}
		path := static(t, path, t.TempDir())
		o := ort.SessionOptions{Threads: 1, ProfilePrefix: filepath.Join(t.TempDir(), "p")}
		m, err := measure(path, o, nil)
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		model, err := onnx.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := infer.Model(model, infer.Options{}); err != nil {
			t.Fatal(err)
		}
		p, err := Predict(model, Options{})
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		order := p.labels()
		if len(order) == len(m.order) && !slices.Equal(order, m.order) {
			t.Errorf("%s: order differs from the profile's", path)
		}
		if len(order) != len(m.order) && p.Exact() {
			t.Errorf("%s: %d nodes, the profile has %d, and the prediction claims to be exact", path, len(order), len(m.order))
		}
	}
}
