package train

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models/safetensors"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/runtime"
)

// session is one of the first mode, to save states of.
func session(t *testing.T) *runtime.Session {
	t.Helper()
	s := modes[0].open(t, modes[0].source(t, nil), runtime.Options{})
	t.Cleanup(func() { s.Close() })
	return s
}

func folder(t *testing.T, dir string, keep int) *Folder {
	t.Helper()
	o, err := OpenFolder(dir, keep)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

func save(t *testing.T, o *Folder, s *runtime.Session, steps ...int64) {
	t.Helper()
	for _, step := range steps {
		if _, err := o.Save(s, Position{Version: positionVersion, Step: step}); err != nil {
			t.Fatal(err)
		}
	}
}

func files(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// TestStatesAreKept: the last K stay, older ones go, and those of a time line that was
// left.
func TestStatesAreKept(t *testing.T) {
	s, dir := session(t), filepath.Join(t.TempDir(), "run")
	o := folder(t, dir, 3)
	save(t, o, s, 10, 20, 30, 40, 50)
	if got := files(t, dir); got != "state-00000030.safetensors state-00000040.safetensors state.safetensors" {
		t.Errorf("holds %s", got)
	}
	save(t, o, s, 50) // again, as after an interrupt
	save(t, o, s, 35)
	if got := files(t, dir); got != "state-00000030.safetensors state.safetensors" {
		t.Errorf("after going back to 35 it holds %s", got)
	}
	o.Close()
	one := folder(t, dir, 1)
	save(t, one, s, 60)
	if got := files(t, dir); got != "state.safetensors" {
		t.Errorf("keeping one, it holds %s", got)
	}
}

// TestFolderIsTaken: one process at a time; what a killed one left goes, other files
// stay.
func TestFolderIsTaken(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".state.safetensors.123", "state-notes.safetensors", "state.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o := folder(t, dir, 1)
	if got := files(t, dir); got != "state-notes.safetensors state.txt" {
		t.Errorf("holds %s", got)
	}
	if o.Holds() {
		t.Error("says that it holds a state")
	}
	var busy *BusyError
	if _, err := OpenFolder(dir, 1); !errors.As(err, &busy) {
		t.Errorf("opened twice: %v", err)
	}
	if _, err := OpenFolder(filepath.Join(dir, "state.txt"), 1); err == nil {
		t.Error("opened a file")
	}
	if _, err := OpenFolder(filepath.Join(dir, "no", "such"), 1); err == nil {
		t.Error("opened a folder in a folder that is missing")
	}
}

// TestNothingIsWrittenOverAWholeState: where the last state may well be whole, but cannot be read
// now or by this version, no other one is gone on from, which would be written over it.
func TestNothingIsWrittenOverAWholeState(t *testing.T) {
	s, dir := session(t), t.TempDir()
	o := folder(t, dir, 2)
	save(t, o, s, 1, 2)
	path := StatePath(dir)
	if err := writeState(path, s, Position{Version: positionVersion + 1, Step: 2}); err != nil {
		t.Fatal(err)
	}
	var version *VersionError
	if _, _, err := o.Newest(); !errors.As(err, &version) {
		t.Errorf("the state of the next version: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	state, skipped, err := o.Newest()
	if err != nil || state.Position.Step != 1 || len(skipped) != 1 {
		t.Fatalf("a state that is gone: %v, %v", err, skipped)
	}
	state.Close()
	if err := os.Symlink(stateName, path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := o.Newest(); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a state that cannot be opened: %v", err)
	}
}

// TestIntact: what a training wrote is checked by its hash wherever it is read, and other
// weights have none.
func TestIntact(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.safetensors")
	if err := writeState(path, session(t), Position{Version: positionVersion}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() {}, ""},
		{func() { data[len(data)-1] ^= 1 }, "damaged"},
		{func() { data = bytes.Replace(data, []byte(hashKey), []byte("remat.another"[:len(hashKey)]), 1) }, ""},
	} {
		c.change()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := safetensors.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := Intact(f); err == nil != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
		f.Close()
	}
}

// TestDamagedStates: a state with any byte changed, cut short or lengthened, is refused,
// and the one before it is taken.
func TestDamagedStates(t *testing.T) {
	s, dir := session(t), t.TempDir()
	o := folder(t, dir, 2)
	save(t, o, s, 1, 2)
	path := StatePath(dir)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var changes [][]byte
	for at := 0; at < len(whole); at += 1 + at/7 {
		data := bytes.Clone(whole)
		data[at] ^= 1
		changes = append(changes, data)
	}
	changes = append(changes, whole[:len(whole)-1], whole[:100], whole[:0], append(bytes.Clone(whole), 0))
	for i, data := range changes {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := OpenState(path)
		if err == nil {
			// A space of the header's padding, or of its JSON, says nothing.
			if at := firstDifference(whole, data); at >= len(whole) || whole[at] != ' ' && data[at] != ' ' {
				t.Errorf("change %d, at byte %d, is not seen", i, at)
			}
			got.Close()
		} else if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), path) {
			t.Errorf("change %d: %q", i, err)
		}
	}
	state, skipped, err := o.Newest()
	if err != nil || len(skipped) != 1 || state.Position.Step != 1 {
		t.Fatalf("%v, skipped %v, want the state of step 1", err, skipped)
	}
	defer state.Close()
	if err := state.Fits(s); err != nil {
		t.Error(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	save(t, o, s, 3) // nothing to keep beside
	if got := files(t, dir); got != "state-00000001.safetensors state.safetensors" {
		t.Errorf("holds %s", got)
	}
}

// TestOtherFilesAreNoStates: weights, another version, another graph's state.
func TestOtherFilesAreNoStates(t *testing.T) {
	dir := t.TempDir()
	write := func(meta map[string]string) string {
		path := filepath.Join(dir, "w.safetensors")
		l, err := safetensors.Plan([]safetensors.Info{{Name: "w", DType: onnx.Float32, Shape: []int64{1}}}, meta)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Write(path, func(_ safetensors.Info, w io.Writer) error { _, err := w.Write(make([]byte, 4)); return err }); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		meta map[string]string
		want string
	}{
		{nil, "not a state of remat train"},
		{map[string]string{positionKey: "7"}, "damaged"},
		{map[string]string{positionKey: `{"version": 99}`}, "hash"},
		{map[string]string{positionKey: `{"version": 1, "step": 3}`}, "hash"},
	} {
		if _, err := OpenState(write(c.meta)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.meta, err, c.want)
		}
	}
	path := filepath.Join(dir, "state.safetensors")
	if err := writeState(path, session(t), Position{Version: positionVersion + 1}); err != nil {
		t.Fatal(err)
	}
	var version *VersionError
	if _, err := OpenState(path); !errors.As(err, &version) {
		t.Errorf("a state of the next version: %v", err)
	}
	if err := writeState(path, session(t), Position{Version: positionVersion}); err != nil {
		t.Fatal(err)
	}
	state, err := OpenState(path)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	other := mode{update: modes[1].update}
	s := other.open(t, other.source(t, nil), runtime.Options{})
	defer s.Close()
	if err := state.Fits(s); err == nil || !strings.Contains(err.Error(), "another graph") {
		t.Errorf("a state of AdamW for SGD: %v", err)
	}
}

// TestStateIsReadAsItIs: the tensors of a state become a session's, without a copy where
// they are aligned.
func TestStateIsReadAsItIs(t *testing.T) {
	s, dir := session(t), t.TempDir()
	save(t, folder(t, dir, 1), s, 1)
	state, err := OpenState(StatePath(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	before := readState(t, dir)
	again := modes[0].open(t, modes[0].source(t, nil), runtime.Options{Own: state.Values()})
	defer again.Close()
	batch, err := tinyData.At(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Feed(batch); err != nil {
		t.Fatal(err)
	}
	again.SetRate(1)
	if _, err := again.Step(context.Background()); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for name, v := range state.Values() {
		if err := again.View(name, func(w runtime.Tensor) error {
			if !bytes.Equal(v.Data, w.Data) {
				t.Errorf("%s was copied", name)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
		if info, _ := state.file.Lookup(name); !bytes.Equal(before[info.Offset:][:info.Bytes], v.Data) {
			moved++
		}
	}
	if moved < len(state.Values())/2 {
		t.Errorf("a step changed %d of %d values", moved, len(state.Values()))
	}
	if !bytes.Equal(before, readState(t, dir)) {
		t.Error("the step wrote the file")
	}
}

// TestStatesOfNoNumbers: a NaN or an infinity anywhere is not saved, and what was there
// stays.
func TestStatesOfNoNumbers(t *testing.T) {
	s, dir := session(t), t.TempDir()
	o := folder(t, dir, 2)
	save(t, o, s, 1)
	before := readState(t, dir)
	name := s.Updated()[3]
	dtype, shape, err := s.ShapeOf(name)
	if err != nil || dtype != onnx.Float32 {
		t.Fatal(dtype, err)
	}
	n, _ := onnx.Elements(shape)
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		values := make([]float32, n)
		values[n-1] = float32(bad)
		if err := s.SetInput(name, runtime.FromFloat32s(values, shape...)); err != nil {
			t.Fatal(err)
		}
		var no *NotFiniteStateError
		if _, err := o.Save(s, Position{Step: 2}); !errors.As(err, &no) || no.Name != name {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if !bytes.Equal(before, readState(t, dir)) || strings.Contains(files(t, dir), ".state") {
		t.Errorf("the state was not left alone: %s", files(t, dir))
	}
}

func TestFinite(t *testing.T) {
	for _, d := range []onnx.DType{onnx.Float16, onnx.BFloat16, onnx.Float32, onnx.Float64} {
		for _, x := range []float64{0, -0.5, 1e-8, 60000, math.NaN(), math.Inf(1), math.Inf(-1)} {
			data, err := onnx.FloatTensor(d, []float64{1, x, 2}, 3).Bytes()
			if err != nil {
				t.Fatal(err)
			}
			if got, want := finite(d, data), !math.IsNaN(x) && !math.IsInf(x, 0); got != want {
				t.Errorf("%s %v: %t", d, x, got)
			}
		}
	}
	if !finite(onnx.Int64, bytes.Repeat([]byte{0xff}, 16)) {
		t.Error("integers are finite")
	}
}

// TestPositionSaysAll: a field that is added to Position has to be in its JSON, for the
// hash covers only that.
func TestPositionSaysAll(t *testing.T) {
	p := Position{1, 2, 3, 4, 1, 2, 5, 6, 7, 8, "g", "d", "f", 9, "step"}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var q Position
	if err := json.Unmarshal(text, &q); err != nil || p != q {
		t.Errorf("%+v became %+v: %v", p, q, err)
	}
}

// TestRejectedStates: the one before becomes the last one; with none, there is none.
func TestRejectedStates(t *testing.T) {
	s, dir := session(t), t.TempDir()
	o := folder(t, dir, 3)
	save(t, o, s, 1, 2, 3)
	for _, c := range []struct {
		step, good int64
		holds      string
	}{
		{4, 3, "state-00000001.safetensors state-00000002.safetensors state.safetensors"}, // another step's
		{3, 2, "nan.safetensors state-00000001.safetensors state.safetensors"},
		{2, 1, "nan.safetensors state.safetensors"},
	} {
		path, good, err := o.Reject(c.step)
		if err != nil || good != c.good || path != StatePath(dir) || files(t, dir) != c.holds {
			t.Errorf("rejecting %d: %s, %d, %v, holds %s", c.step, path, good, err, files(t, dir))
		}
		state, _, err := o.Newest()
		if err != nil || state.Position.Step != c.good {
			t.Fatalf("after rejecting %d: %v", c.step, err)
		}
		state.Close()
	}
	if path, _, err := o.Reject(1); path != "" || err != nil || o.Holds() {
		t.Errorf("rejecting the last one: %q, %v, holds %s", path, err, files(t, dir))
	}
}

// TestStateSaysPairs: a state of a graph with low-rank pairs says their scale, and which
// matrices are not tied, and its hash covers that.
func TestStateSaysPairs(t *testing.T) {
	s := session(t)
	s.Model.SetMetadata(step.AdaptersKey, `{"w":{"r":8,"alpha":16}}`)
	s.Model.SetMetadata(step.ApartKey, `["v"]`)
	path := filepath.Join(t.TempDir(), "s.safetensors")
	if err := writeState(path, s, Position{Version: positionVersion}); err != nil {
		t.Fatal(err)
	}
	state, err := OpenState(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := state.file.Metadata[step.AdaptersKey]; got != `{"w":{"r":8,"alpha":16}}` {
		t.Errorf("got %q", got)
	}
	if got := state.file.Metadata[step.ApartKey]; got != `["v"]` {
		t.Errorf("got %q", got)
	}
	if err := state.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	quoted := func(text string) []byte { return []byte(strings.ReplaceAll(text, `"`, `\"`)) }
	for _, change := range [][2]string{{"16}}", "17}}"}, {step.AdaptersKey, "remat.adaptere"}, {`["v"]`, `["w"]`}} {
		changed := bytes.Replace(data, quoted(change[0]), quoted(change[1]), 1)
		if bytes.Equal(changed, data) {
			t.Fatalf("the file has no %s", change[0])
		}
		if err := os.WriteFile(path, changed, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenState(path); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("with %s changed: %v", change[0], err)
		}
	}
}
