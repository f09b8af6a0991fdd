package watch

// log.jsonl: a line a step,
//
//	{"step": 1, "loss": 10.9, "lr": 0.0006, "gradient_norm": 2.1, …}
//
// and a line a validation, {"step": 1, "val_loss": 10.8, "perplexity": 49020.8}.
// Each line is one write to a file that only grows. What does not apply is null;
// NaN and infinities are strings.

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"

	"github.com/onnx-remat/remat/internal/report"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/train"
)

// A log writes lines.
type log struct {
	path string
	f    *os.File
	line []byte // of the step before, used again
}

func openLog(path string) (*log, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		return nil, cause(path, err)
	}
	return &log{path: path, f: f}, nil
}

func (l *log) close() error { return cause(l.path, l.f.Close()) }

// step writes a step's line.
func (l *log) step(s train.Record) error {
	b := append(l.line[:0], `{"step": `...)
	b = strconv.AppendInt(b, s.Step, 10)
	b = number(append(b, `, "loss": `...), s.Loss)
	b = number(append(b, `, "lr": `...), s.LR)
	b = append(b, `, "gradient_norm": `...)
	if math.IsNaN(s.GradientNorm) {
		b = append(b, "null"...)
	} else {
		b = number(b, s.GradientNorm)
	}
	b = strconv.AppendInt(append(b, `, "tokens": `...), s.Tokens, 10)
	b = number(append(b, `, "seconds": `...), s.Seconds)
	b = strconv.AppendInt(append(b, `, "live_peak_bytes": `...), s.LivePeakBytes, 10)
	b = strconv.AppendInt(append(b, `, "reserved_bytes": `...), s.ReservedBytes, 10)
	b = strconv.AppendInt(append(b, `, "rss_bytes": `...), s.RSSBytes, 10)
	b = append(b, `, "loss_scale": `...)
	if s.LossScale == 0 {
		b = append(b, "null"...)
	} else {
		b = number(b, s.LossScale)
	}
	b = strconv.AppendBool(append(b, `, "skipped": `...), s.Skipped)
	if s.SentBytes > 0 {
		b = strconv.AppendInt(append(b, `, "sent_bytes": `...), s.SentBytes, 10)
	}
	return l.write(append(b, "}\n"...))
}

// validated writes a validation's line.
func (l *log) validated(v train.Validation) error {
	b := append(l.line[:0], `{"step": `...)
	b = strconv.AppendInt(b, v.Step, 10)
	b = number(append(b, `, "val_loss": `...), v.Loss)
	b = number(append(b, `, "perplexity": `...), v.Perplexity)
	return l.write(append(b, "}\n"...))
}

func (l *log) write(line []byte) error {
	l.line = line
	_, err := l.f.Write(line)
	return cause(l.path, err)
}

// number appends a float as report.Float writes it.
func number(b []byte, x float64) []byte {
	switch {
	case math.IsNaN(x):
		return append(b, `"NaN"`...)
	case math.IsInf(x, 1):
		return append(b, `"Infinity"`...)
	case math.IsInf(x, -1):
		return append(b, `"-Infinity"`...)
	}
	return strconv.AppendFloat(b, x, 'g', -1, 64)
}

// A line is either kind, as it is read.
type line struct {
	Step       int64         `json:"step"`
	Loss       *report.Float `json:"loss"`
	LR         report.Float  `json:"lr"`
	Norm       *report.Float `json:"gradient_norm"`
	Tokens     int64         `json:"tokens"`
	Seconds    report.Float  `json:"seconds"`
	Live       int64         `json:"live_peak_bytes"`
	Reserved   int64         `json:"reserved_bytes"`
	RSS        int64         `json:"rss_bytes"`
	Scale      report.Float  `json:"loss_scale"`
	Skipped    bool          `json:"skipped"`
	Sent       int64         `json:"sent_bytes"`
	ValLoss    *report.Float `json:"val_loss"`
	Perplexity report.Float  `json:"perplexity"`
}

// longestLine of a log: far above what is written.
const longestLine = 1 << 16

// Read calls step and validated for the lines of a log, in their order. A last line
// that does not end, as of a process that was killed, is left out; any other that is
// no line of a log is an error. A file that does not exist is an empty log.
func Read(path string, step func(train.Record) error, validated func(train.Validation) error) error {
	return readLines(path, func(l line, _ []byte) error {
		if l.ValLoss != nil {
			return validated(train.Validation{Step: l.Step, Loss: float64(*l.ValLoss), Perplexity: float64(l.Perplexity)})
		}
		norm := math.NaN()
		if l.Norm != nil {
			norm = float64(*l.Norm)
		}
		return step(train.Record{Step: l.Step, Loss: float64(*l.Loss), LR: float64(l.LR), GradientNorm: norm, Tokens: l.Tokens,
			Seconds: float64(l.Seconds), LivePeakBytes: l.Live, ReservedBytes: l.Reserved, RSSBytes: l.RSS,
			LossScale: float64(l.Scale), Skipped: l.Skipped, SentBytes: l.Sent})
	})
}

// readLines calls each for every line and its text, with the newline.
func readLines(path string, each func(line, []byte) error) error {
	f, err := openRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return cause(path, err)
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, longestLine)
	for n := 1; ; n++ {
		text, err := r.ReadSlice('\n')
		switch {
		case err == io.EOF:
			return nil // a torn line, or none
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return cause(path, err)
		}
		var l line
		bad := err
		if bad == nil {
			bad = json.Unmarshal(text, &l)
		}
		if bad != nil || l.Step < 0 || (l.Loss == nil) == (l.ValLoss == nil) {
			return fmt.Errorf("%s:%d: not a line of a training log: move the file away to go on", path, n)
		}
		if err := each(l, text); err != nil {
			return err
		}
	}
}

// openRegular opens a regular file to read; a named pipe would wait.
func openRegular(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return os.Open(path)
}

// cut keeps of a log what was told up to a step, in a file beside it that is renamed;
// 0 keeps nothing.
func cut(path string, from int64) error {
	if from == 0 {
		return onnx.ReplaceFile(path, func(*os.File) error { return nil })
	}
	var bad error // names the file and a line
	err := onnx.ReplaceFile(path, func(f *os.File) error {
		w := bufio.NewWriter(f)
		bad = readLines(path, func(l line, text []byte) error {
			if l.Step > from {
				return nil
			}
			_, err := w.Write(text)
			return err
		})
		return errors.Join(bad, w.Flush())
	})
	if bad != nil {
		return bad
	}
	return err
}
