package report

import (
	"fmt"
	"io"
	"slices"

	"github.com/onnx-remat/remat/internal/units"
)

// Text writes the comparison as a person reads it.
func (c *Compare) Text(w io.Writer) error {
	if c.Rehearsed() {
		if _, err := fmt.Fprintf(w, "rehearsed: %s\n\n", NoNumbers); err != nil {
			return err
		}
	}
	if err := writeTables(w, c.tables()...); err != nil {
		return err
	}
	for i := range c.Pairs {
		if _, err := fmt.Fprintln(w, c.Sentence(i)); err != nil {
			return err
		}
	}
	return nil
}

// tables are what text and page show of all variants side by side.
func (c *Compare) tables() []Table {
	all := []Table{c.memoryTable(), c.peakTable(), c.phasesTable(), c.timeTable(), c.deviceTable(), c.predictionTable(), c.resultTable()}
	var used []Table
	for _, t := range all {
		if t = t.compact(); len(t.Columns) > 1 {
			used = append(used, t)
		}
	}
	return used
}

// perVariant makes a table with one row per variant.
func (c *Compare) perVariant(title string, columns []string, cells func(i int, m *Run, p *Pair) []string) Table {
	t := Table{Title: title, Columns: append([]string{"variant"}, columns...)}
	names := c.names()
	for i, m := range c.Models {
		t.add(append([]string{names[i]}, cells(i, m, c.pairOf(i))...)...)
	}
	return t
}

func (c *Compare) memoryTable() Table {
	columns := []string{">live peak", ">saving", ">theory", ">total peak", ">total saving", ">reserved", ">arena peak", ">arena reserved", ">process peak", "ran", "~failed"}
	return c.perVariant("memory", columns, func(_ int, m *Run, p *Pair) []string {
		saving, theory, total, ran := none, none, none, none
		if m.Alone {
			ran = "alone"
		}
		if p != nil {
			saving = floatOr(p.Saving, units.Percent)
			theory = floatOr(p.TheorySaving, units.Percent)
			total = floatOr(p.TotalSaving, units.Percent)
		}
		return []string{BytesOr(m.Memory.LivePeakBytes), saving, theory, BytesOr(m.Memory.TotalPeakBytes), total,
			BytesOr(m.Memory.ReservedBytes), BytesOr(m.Memory.ArenaPeakBytes), BytesOr(m.Memory.ArenaReservedBytes), BytesOr(m.Memory.RSSPeakBytes), ran, textOr(string(m.Error))}
	})
}

func (c *Compare) peakTable() Table {
	var columns []string
	for _, k := range AllCategories {
		columns = append(columns, ">"+categoryName(k))
	}
	return c.perVariant("at the peak, by category", append(columns, ">total", "node"), func(_ int, m *Run, _ *Pair) []string {
		cells := slices.Repeat([]string{none}, len(columns)+2)
		if m.Peak == nil {
			return cells
		}
		for i, k := range AllCategories {
			if n := m.Peak.Sizes.Of(k); n != 0 {
				cells[i] = units.Bytes(n)
			}
		}
		cells[len(columns)] = units.Bytes(m.Peak.TotalBytes)
		cells[len(columns)+1] = textOr(elide(m.Peak.Node, 60))
		return cells
	})
}

func (c *Compare) timeTable() Table {
	columns := []string{">step, median", ">quartiles", ">steps", ">overhead", ">saved per second lost"}
	return c.perVariant("time", columns, func(_ int, m *Run, p *Pair) []string {
		quartiles, steps, overhead, rate := none, none, none, none
		if s := m.StepSeconds; s != nil {
			if steps = itoa(s.Count); s.Count > 1 {
				quartiles = units.Seconds(s.Quartile) + " to " + units.Seconds(s.Upper)
			}
		}
		if p != nil {
			overhead = floatOr(p.Overhead, units.Signed)
			rate = floatOr(p.SavedBytesPerSecondLost, byteRate)
		}
		return []string{units.Seconds(m.MedianSeconds()), quartiles, steps, overhead, rate}
	})
}

func (c *Compare) deviceTable() Table {
	columns := []string{">copies to host", ">bytes", ">copies to device", ">bytes", ">synchronizations", ">on the host", ">kernels"}
	return c.perVariant("asked of the device by one step", columns, func(_ int, m *Run, _ *Pair) []string {
		d := m.Device
		if d == nil {
			return []string{none, none, none, none, none, none, none}
		}
		fallback := none
		if d.FallbackNodes != nil {
			fallback = itoa(int(*d.FallbackNodes))
		}
		return []string{itoa(int(d.CopiesToHost)), units.Bytes(d.BytesToHost), itoa(int(d.CopiesToDevice)), units.Bytes(d.BytesToDevice),
			itoa(int(d.Synchronizations)), fallback, itoa(int(d.Kernels))}
	})
}

// byteRate writes memory per second lost in MB/s, the unit it is quoted in.
func byteRate(x float64) string { return fmt.Sprintf("%.0f MB/s", x/1e6) }

func (c *Compare) predictionTable() Table {
	columns := []string{">live peak", ">predicted", ">difference", ">session", ">predicted", ">difference", ">reserved", ">predicted", ">difference"}
	t := c.perVariant("predicted against measured", columns, func(_ int, m *Run, _ *Pair) []string {
		var cells []string
		three := func(measured, predicted *int64) {
			if predicted == nil {
				cells = append(cells, none, none, none)
				return
			}
			cells = append(cells, BytesOr(measured), units.Bytes(*predicted), differenceOf(measured, predicted))
		}
		three(m.Memory.LivePeakBytes, m.Memory.PredictedLivePeakBytes)
		three(m.Memory.SessionBytes, m.Memory.PredictedSessionBytes)
		three(m.Memory.ReservedBytes, m.Memory.PredictedReservedBytes)
		return cells
	})
	return t
}

func (c *Compare) resultTable() Table {
	columns := []string{">loss, first", ">loss, last", ">loss difference", ">gradient difference", ">of the largest", "same bits", "within tolerance", "furthest apart"}
	return c.perVariant("results", columns, func(_ int, m *Run, p *Pair) []string {
		cells := []string{none, none, none, none, none, none, none, none}
		if l := m.Losses(); len(l) > 0 {
			cells[0] = units.Number(l[0])
			if len(l) > 1 {
				cells[1] = units.Number(l[len(l)-1])
			}
		}
		if p != nil {
			cells[2] = floatOr(p.Loss, units.Number)
			cells[3] = floatOr(p.Gradient, units.Number)
			cells[4] = floatOr(p.RelativeGradient, units.Number)
			cells[5], cells[6] = yesNo(p.BitIdentical), yesNo(p.WithinTolerance)
			cells[7] = textOr(string(p.WorstGradient))
		}
		return cells
	})
}

func yesNo(b *bool) string {
	switch {
	case b == nil:
		return none
	case *b:
		return "yes"
	}
	return "no"
}
