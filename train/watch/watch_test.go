package watch

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/train"
)

func record(step int64) train.Record {
	x := float64(step)
	return train.Record{Step: step, Loss: 10 / x, LR: 1e-5 * x, GradientNorm: 1 / x, Tokens: 256, AllTokens: 256 * step, Seconds: 0.125,
		LivePeakBytes: 1 << 20, ReservedBytes: 2 << 20, RSSBytes: 3<<20 + step, LossScale: 65536}
}

// tell is what a run of some steps tells: a validation and a state every fifth.
func tell(t *testing.T, w train.Watcher, from, to int64) {
	t.Helper()
	for i := from; i <= to; i++ {
		err := w.Step(record(i))
		if err == nil && i%5 == 0 {
			err = w.Validated(train.Validation{Step: i, Loss: 5, Perplexity: math.Exp(5)})
		}
		if err == nil && i%5 == 0 {
			err = w.Saved("state.safetensors", i)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func open(t *testing.T, dir string, o Options) *Run {
	t.Helper()
	w, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// The log is the contract's, to the letter.
func TestLogLines(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, Options{})
	odd := train.Record{Step: 2, Loss: 1e-7, GradientNorm: math.NaN(), Skipped: true}
	over := train.Record{Step: 3, Loss: math.Inf(1), GradientNorm: math.Inf(1), LossScale: 0.5}
	for _, s := range []train.Record{record(1), odd, over} {
		if err := w.Step(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Validated(train.Validation{Step: 3, Loss: 2.5, Perplexity: math.NaN(), Tokens: 7}); err != nil {
		t.Fatal(err)
	}
	const want = `{"step": 1, "loss": 10, "lr": 1e-05, "gradient_norm": 1, "tokens": 256, "seconds": 0.125, "live_peak_bytes": 1048576, "reserved_bytes": 2097152, "rss_bytes": 3145729, "loss_scale": 65536, "skipped": false}
{"step": 2, "loss": 1e-07, "lr": 0, "gradient_norm": null, "tokens": 0, "seconds": 0, "live_peak_bytes": 0, "reserved_bytes": 0, "rss_bytes": 0, "loss_scale": null, "skipped": true}
{"step": 3, "loss": "Infinity", "lr": 0, "gradient_norm": "Infinity", "tokens": 0, "seconds": 0, "live_peak_bytes": 0, "reserved_bytes": 0, "rss_bytes": 0, "loss_scale": 0.5, "skipped": false}
{"step": 3, "val_loss": 2.5, "perplexity": "NaN"}
`
	got := read(t, filepath.Join(dir, LogName)) // before Close: nothing waits in a buffer
	if got != want {
		t.Errorf("the log is\n%s\nwant\n%s", got, want)
	}
	for _, l := range strings.Split(strings.TrimSpace(got), "\n") {
		if !json.Valid([]byte(l)) {
			t.Errorf("not JSON: %s", l)
		}
	}
	var back []train.Record
	var val []train.Validation
	err := Read(filepath.Join(dir, LogName), func(s train.Record) error { back = append(back, s); return nil },
		func(v train.Validation) error { val = append(val, v); return nil })
	first := record(1)
	first.AllTokens = 0 // not in the log
	if err != nil || len(back) != 3 || back[0] != first || !math.IsNaN(back[1].GradientNorm) || !back[1].Skipped || back[2].LossScale != 0.5 ||
		len(val) != 1 || val[0].Loss != 2.5 || !math.IsNaN(val[0].Perplexity) {
		t.Errorf("read %+v %+v, %v", back, val, err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// --log-every keeps the first, the last and every skipped step.
func TestEvery(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, Options{Every: 4, Steps: 11})
	for i := int64(1); i <= 11; i++ {
		s := record(i)
		s.Skipped = i == 6
		if err := w.Step(s); err != nil {
			t.Fatal(err)
		}
	}
	var steps []int64
	if err := Read(filepath.Join(dir, LogName), func(s train.Record) error { steps = append(steps, s.Step); return nil }, nil); err != nil {
		t.Fatal(err)
	}
	if got := mustJSON(steps); got != "[1,4,6,8,11]" {
		t.Errorf("logged %s", got)
	}
}

func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// A run that goes on from a state leaves the log and the page of one that was never
// stopped, wherever it was killed: also in the midst of a line.
func TestResume(t *testing.T) {
	whole := t.TempDir()
	page := func() *report.Training { return &report.Training{Title: "run"} }
	w := open(t, whole, Options{Steps: 20, Page: page()})
	tell(t, w, 1, 20)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want := read(t, filepath.Join(whole, LogName))
	for _, killed := range []struct {
		after, from int64
		torn        string
	}{{7, 5, ""}, {12, 10, `{"step": 13, "lo`}, {10, 10, "{"}, {3, 0, `{"st`}, {20, 5, "\x00\x00\x00"}, {5, 5, `{"step": 6, "loss": 1}`}} {
		dir := t.TempDir()
		tell(t, open(t, dir, Options{Steps: 20, Page: page()}), 1, killed.after)
		path := filepath.Join(dir, LogName)
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(killed.torn)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		w := open(t, dir, Options{From: killed.from, Steps: 20, Page: page()})
		tell(t, w, killed.from+1, 20)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); got != want {
			t.Errorf("killed after %d, resumed at %d: the log is\n%s", killed.after, killed.from, got)
		}
		if got := read(t, filepath.Join(dir, PageName)); got != read(t, filepath.Join(whole, PageName)) {
			t.Errorf("killed after %d, resumed at %d: another page", killed.after, killed.from)
		}
		steps := map[int64]float64{}
		for _, e := range scalars(t, filepath.Join(dir, EventsName)) {
			if e.tag == "loss" {
				steps[e.step] = float64(e.value)
			}
		}
		if len(steps) != 20 || steps[20] != float64(float32(0.5)) {
			t.Errorf("killed after %d, resumed at %d: events of steps %v", killed.after, killed.from, steps)
		}
	}
}

// TestValidatedAgain: a run that is resumed after its last step validates again, and tells it
// once.
func TestValidatedAgain(t *testing.T) {
	dir := t.TempDir()
	last := train.Validation{Step: 20, Loss: 5, Perplexity: math.Exp(5)}
	for _, from := range []int64{0, 20, 20} {
		w := open(t, dir, Options{From: from, Steps: 20})
		var err error
		if from == 0 {
			tell(t, w, 1, 20)
		} else {
			err = w.Validated(last)
		}
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
	}
	log, told := read(t, filepath.Join(dir, LogName)), 0
	for _, e := range scalars(t, filepath.Join(dir, EventsName)) {
		if e.tag == "val_loss" && e.step == last.Step {
			told++
		}
	}
	if n := strings.Count(log, `"step": 20, "val_loss"`); n != 1 || told != 1 {
		t.Errorf("%d lines and %d events of one validation:\n%s", n, told, log)
	}
}

// A log that is not one ends a resumed run in one line, and stays as it was.
func TestHostileLog(t *testing.T) {
	good := `{"step": 1, "loss": 1}` + "\n"
	for name, text := range map[string]string{
		"text": "hello\n", "array": "[1]\n", "neither": `{"step": 1}` + "\n", "both": `{"step": 1, "loss": 1, "val_loss": 1}` + "\n",
		"type": `{"step": "x", "loss": 1}` + "\n", "negative": `{"step": -1, "loss": 1}` + "\n", "long": `{"x": "` + strings.Repeat("y", 1<<20) + `"}` + "\n",
		"huge": `{"step": 99999999999999999999, "loss": 1}` + "\n", "deep": strings.Repeat("[", 60000) + "\n", "zeros": strings.Repeat("\x00", 100) + "\n",
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, LogName)
		if err := os.WriteFile(path, []byte(good+text+good), 0o644); err != nil {
			t.Fatal(err)
		}
		_, err := Open(dir, Options{From: 1, Page: &report.Training{}})
		if err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.HasPrefix(err.Error(), path+":2: not a line of a training log") {
			t.Errorf("%s: %v", name, err)
		}
		if read(t, path) != good+text+good {
			t.Errorf("%s: the log was changed", name)
		}
		if left, _ := os.ReadDir(dir); len(left) != 1 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, LogName), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { _, err := Open(dir, Options{From: 1}); done <- err }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("a named pipe was taken for a log")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("opening a named pipe waits")
	}
}

// A full disk is one line that names the file.
func TestFullDisk(t *testing.T) {
	w := open(t, t.TempDir(), Options{})
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("no /dev/full here")
	}
	w.log.f.Close()
	w.log.f = full
	if err := w.Step(record(1)); err == nil || !strings.HasSuffix(err.Error(), "log.jsonl: no space left on device") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

// A step costs microseconds and takes no memory that stays.
func TestStepCost(t *testing.T) {
	w := open(t, t.TempDir(), Options{Page: &report.Training{}})
	for i := int64(1); i <= 2000; i++ { // buffers and buckets have grown
		if err := w.Step(record(i)); err != nil {
			t.Fatal(err)
		}
	}
	step := int64(2000)
	allocated := testing.AllocsPerRun(1000, func() {
		step++
		if err := w.Step(record(step)); err != nil {
			t.Fatal(err)
		}
	})
	if allocated > 0 {
		t.Errorf("%.1f allocations a step", allocated)
	}
	best := time.Hour
	for range 5 { // others use the machine too
		start := time.Now()
		for range 1000 {
			step++
			if err := w.Step(record(step)); err != nil {
				t.Fatal(err)
			}
		}
		best = min(best, time.Since(start)/1000)
	}
	t.Logf("%v a step", best)
	if best > 50*time.Microsecond {
		t.Errorf("%v a step", best)
	}
}
