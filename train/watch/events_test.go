package watch

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/onnx-remat/remat/train"
)

// A scalar as TensorBoard has it in the end.
type scalar struct {
	tag   string
	step  int64
	value float32
}

// crc32c is the checksum bit by bit.
func crc32c(data []byte) uint32 {
	crc := ^uint32(0)
	for _, b := range data {
		crc ^= uint32(b)
		for range 8 {
			if crc&1 == 1 {
				crc = crc>>1 ^ 0x82f63b78
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

func TestMasked(t *testing.T) {
	digits := uint32(0xe3069283) // of "123456789", as every CRC-32C
	if got := crc32c([]byte("123456789")); got != digits {
		t.Fatalf("%x", got)
	}
	if got := masked([]byte("123456789")); got != (digits>>15|digits<<17)+0xa282ead8 {
		t.Errorf("%x", got)
	}
}

// records divides a file into its records, and checks their checksums.
func records(t *testing.T, data []byte) [][]byte {
	t.Helper()
	var all [][]byte
	unmask := func(x uint32) uint32 { x -= 0xa282ead8; return x>>17 | x<<15 }
	for len(data) > 0 {
		n := binary.LittleEndian.Uint64(data)
		if unmask(binary.LittleEndian.Uint32(data[8:])) != crc32c(data[:8]) {
			t.Fatal("the checksum of a length is wrong")
		}
		event := data[12 : 12+n]
		if unmask(binary.LittleEndian.Uint32(data[12+n:])) != crc32c(event) {
			t.Fatal("the checksum of an event is wrong")
		}
		all, data = append(all, event), data[16+n:]
	}
	return all
}

// fields are the fields of a message: integers as they are, others as their bytes.
func fields(t *testing.T, b []byte) map[int][]any {
	t.Helper()
	all := map[int][]any{}
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		b = b[n:]
		var v any
		switch typ {
		case protowire.VarintType:
			v, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			v, n = protowire.ConsumeFixed32(b)
		case protowire.Fixed64Type:
			v, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			v, n = protowire.ConsumeBytes(b)
		}
		if n < 0 {
			t.Fatal(protowire.ParseError(n))
		}
		all[int(num)] = append(all[int(num)], v)
		b = b[n:]
	}
	return all
}

// scalars reads a folder as TensorBoard does: files by name, and a START drops what
// is there from its step on.
func scalars(t *testing.T, dir string) []scalar {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no event files in %s: %v", dir, err)
	}
	slices.Sort(files)
	var all []scalar
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range records(t, data) {
			e := fields(t, r)
			if wall := math.Float64frombits(e[1][0].(uint64)); wall < 1.6e9 || wall > 1e10 {
				t.Fatalf("event %d is of second %g", i, wall)
			}
			if i == 0 && (len(e[3]) != 1 || string(e[3][0].([]byte)) != "brain.Event:2") {
				t.Fatalf("the first event of %s is %v", file, e)
			}
			step := int64(0)
			if len(e[2]) > 0 {
				step = int64(e[2][0].(uint64))
			}
			if len(e[7]) > 0 {
				if status := fields(t, e[7][0].([]byte)); status[1][0] != uint64(1) {
					t.Fatalf("a session log of %v", status)
				}
				all = slices.DeleteFunc(all, func(s scalar) bool { return s.step >= step })
			}
			for _, summary := range e[5] {
				for _, value := range fields(t, summary.([]byte))[1] {
					v := fields(t, value.([]byte))
					all = append(all, scalar{string(v[1][0].([]byte)), step, math.Float32frombits(v[2][0].(uint32))})
				}
			}
		}
	}
	return all
}

func TestEvents(t *testing.T) {
	dir := t.TempDir()
	w := open(t, dir, Options{})
	odd := train.Record{Step: 2, Loss: 2, GradientNorm: math.NaN(), LR: math.Inf(1)}
	for _, s := range []train.Record{record(1), odd} {
		if err := w.Step(s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Validated(train.Validation{Step: 2, Loss: 3, Perplexity: 20}); err != nil {
		t.Fatal(err)
	}
	want := []scalar{{"loss", 1, 10}, {"lr", 1, 1e-5}, {"gradient_norm", 1, 1}, {"tokens_per_second", 1, 2048}, {"live_peak_bytes", 1, 1 << 20},
		{"reserved_bytes", 1, 2 << 20}, {"rss_bytes", 1, 3<<20 + 1}, {"loss_scale", 1, 65536},
		{"loss", 2, 2}, {"live_peak_bytes", 2, 0}, {"reserved_bytes", 2, 0}, {"rss_bytes", 2, 0}, {"val_loss", 2, 3}, {"perplexity", 2, 20}}
	if got := scalars(t, filepath.Join(dir, EventsName)); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

// Files begun within a second, or after the clock went back, are read in the order in
// which they were written.
func TestEventFilesInOrder(t *testing.T) {
	dir := t.TempDir()
	later := filepath.Join(dir, EventsName, "events.out.tfevents.9000000000.000000.remat")
	if err := os.MkdirAll(filepath.Dir(later), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(later, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for i := int64(0); i < 12; i++ {
		w := open(t, dir, Options{From: i})
		r := record(i + 1)
		r.Loss = float64(i)
		if err := w.Step(r); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var losses []float32
	for _, s := range scalars(t, filepath.Join(dir, EventsName)) {
		if s.tag == "loss" {
			losses = append(losses, s.value)
		}
	}
	if !slices.Equal(losses, []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}) {
		t.Errorf("losses %v", losses)
	}
}
