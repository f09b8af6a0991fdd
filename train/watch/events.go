package watch

// TensorBoard's event files: TFRecords, each
//
//	uint64 length | uint32 masked CRC-32C of it | an Event | uint32 masked CRC-32C of that
//
// in little endian. An Event is a protobuf message, of which these fields are used
// (tensorflow/core/util/event.proto, framework/summary.proto):
//
//	Event      1 wall_time double, 2 step int64, 3 file_version string, 5 summary, 7 session_log
//	Summary    1 repeated Value
//	Value      1 tag string, 2 simple_value float
//	SessionLog 1 status: 1 is START
//
// A run that goes on writes a new file that opens with a START at its first step:
// TensorBoard drops what older files have from that step on. It reads the files of a
// folder in the order of their names, so these begin with a time that never goes back.

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/onnx-remat/remat/train"
)

const (
	fileVersion  = "brain.Event:2"
	sessionStart = 1

	eventWallTime, eventStep, eventFileVersion, eventSummary, eventSession = 1, 2, 3, 5, 7
	summaryValue, valueTag, valueSimple, sessionStatus                     = 1, 1, 2, 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// eventFile matches the names of event files, with the time in them.
var eventFile = regexp.MustCompile(`^events\.out\.tfevents\.(\d{1,12})\.`)

// events writes event files. Buffers are used again: a step allocates nothing.
type events struct {
	path                          string
	f                             *os.File
	summary, value, event, record []byte
}

// openEvents begins a new file in a folder; first is the step that the run begins with.
func openEvents(dir string, first int64) (*events, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return nil, cause(dir, err)
	}
	at := time.Now().Unix()
	have, err := os.ReadDir(dir)
	if err != nil {
		return nil, cause(dir, err)
	}
	for _, entry := range have {
		if m := eventFile.FindStringSubmatch(entry.Name()); m != nil {
			if t, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				at = max(at, t)
			}
		}
	}
	path := filepath.Join(dir, fmt.Sprintf("events.out.tfevents.%010d.%06d.remat", at, len(have)))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, cause(path, err)
	}
	w := &events{path: path, f: f}
	w.begin(0)
	w.event = protowire.AppendString(protowire.AppendTag(w.event, eventFileVersion, protowire.BytesType), fileVersion)
	err = w.write()
	if err == nil {
		w.begin(first)
		status := protowire.AppendVarint(protowire.AppendTag(nil, sessionStatus, protowire.VarintType), sessionStart)
		w.event = protowire.AppendBytes(protowire.AppendTag(w.event, eventSession, protowire.BytesType), status)
		err = w.write()
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return w, nil
}

func (w *events) close() error { return cause(w.path, w.f.Close()) }

// step writes a step's scalars, under the names that log.jsonl has for them.
func (w *events) step(s train.Record) error {
	w.summary = w.summary[:0]
	w.scalar("loss", s.Loss)
	w.scalar("lr", s.LR)
	w.scalar("gradient_norm", s.GradientNorm)
	if s.Seconds > 0 && s.Tokens > 0 {
		w.scalar("tokens_per_second", float64(s.Tokens)/s.Seconds)
	}
	w.scalar("live_peak_bytes", float64(s.LivePeakBytes))
	w.scalar("reserved_bytes", float64(s.ReservedBytes))
	w.scalar("rss_bytes", float64(s.RSSBytes))
	if s.LossScale != 0 {
		w.scalar("loss_scale", s.LossScale)
	}
	return w.summarize(s.Step)
}

// validated writes a validation's scalars.
func (w *events) validated(v train.Validation) error {
	w.summary = w.summary[:0]
	w.scalar("val_loss", v.Loss)
	w.scalar("perplexity", v.Perplexity)
	return w.summarize(v.Step)
}

// scalar adds a value to the summary, unless it is none that can be drawn.
func (w *events) scalar(tag string, x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	w.value = protowire.AppendString(protowire.AppendTag(w.value[:0], valueTag, protowire.BytesType), tag)
	w.value = protowire.AppendFixed32(protowire.AppendTag(w.value, valueSimple, protowire.Fixed32Type), math.Float32bits(float32(x)))
	w.summary = protowire.AppendBytes(protowire.AppendTag(w.summary, summaryValue, protowire.BytesType), w.value)
}

// summarize writes the summary as an event at a step.
func (w *events) summarize(step int64) error {
	w.begin(step)
	w.event = protowire.AppendBytes(protowire.AppendTag(w.event, eventSummary, protowire.BytesType), w.summary)
	return w.write()
}

// begin begins an event of now.
func (w *events) begin(step int64) {
	now := float64(time.Now().UnixNano()) / 1e9
	w.event = protowire.AppendFixed64(protowire.AppendTag(w.event[:0], eventWallTime, protowire.Fixed64Type), math.Float64bits(now))
	if step != 0 {
		w.event = protowire.AppendVarint(protowire.AppendTag(w.event, eventStep, protowire.VarintType), uint64(step))
	}
}

// write writes the event as one record, in one write.
func (w *events) write() error {
	b := binary.LittleEndian.AppendUint64(w.record[:0], uint64(len(w.event)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	b = append(b, w.event...)
	w.record = binary.LittleEndian.AppendUint32(b, masked(w.event))
	_, err := w.f.Write(w.record)
	return cause(w.path, err)
}

// masked is the checksum of a TFRecord: a CRC of data that holds CRCs would be weak.
func masked(data []byte) uint32 {
	crc := crc32.Checksum(data, castagnoli)
	return (crc>>15 | crc<<17) + 0xa282ead8
}
