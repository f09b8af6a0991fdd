package ort

import (
	"fmt"
	"strings"
	"testing"
)

// someTable is of seven requests: one lies outside, one lives to the end, and one takes
// the place of another that was released.
func someTable() (text string, places []Place) {
	places = []Place{{4096, 0}, {100, -1}, {8192, 4160}, {4096, 0}, {100, -1}, {8192, 12416}, {100, -1}}
	return WriteSlab(20608, places, []int{3, 0, 7, 7, 0, 6, 0}, "abc"), places
}

func TestSlabTable(t *testing.T) {
	text, places := someTable()
	got, err := ReadSlab(text)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got.Places) != fmt.Sprint(places) || got.Size != 20608 || got.Peak != 4096+8192+8192 || got.Graph != "abc" {
		t.Errorf("%+v", got)
	}
	t.Log(text)
}

// TestSlabTableIsRefused: each kind of wrong table, by what it says of it.
func TestSlabTableIsRefused(t *testing.T) {
	text, places := someTable()
	until := []int{3, 0, 7, 7, 0, 6, 0}
	fields := strings.Fields(text)
	with := func(k int, field string) string {
		list := append([]string{}, fields...)
		list[k] = field
		return strings.Join(list, " ")
	}
	wrote := func(change func(p []Place, u []int) int64) string {
		p, u := append([]Place{}, places...), append([]int{}, until...)
		return WriteSlab(change(p, u), p, u, "abc")
	}
	for name, c := range map[string]struct{ text, want string }{
		"empty":                           {"", "another version"},
		"no table":                        {"onnx", "another version"},
		"version":                         {with(0, "1"), "another version"},
		"no size":                         {with(1, "-5"), "no list of numbers"},
		"long size":                       {with(1, "9999999999999999999"), "no list of numbers"},
		"align":                           {with(2, "1"), "multiples of another number"},
		"no number":                       {with(2, "x"), "no list of numbers"},
		"no requests":                     {with(3, "0"), "that many requests"},
		"more than are listed":            {with(3, "8"), "request 8 is cut off"},
		"more than characters":            {with(3, "65000"), "that many requests"},
		"huge":                            {with(3, "999999999999999999"), "that many requests"},
		"fewer than listed":               {with(3, "6"), "request 6 is released after"},
		"no graph":                        {strings.Join(fields[:4], " ") + "  " + fields[5], "names no graph"},
		"only a head":                     {strings.Join(fields[:5], " "), "names no graph"},
		"cut off":                         {text[:len(text)-6], "cut off"},
		"not base64":                      {text[:len(text)-3] + "!!!", "not written as a number"},
		"goes on":                         {text + "AA", "goes on"},
		"half a byte":                     {text + "A", "goes on"},
		"endless number":                  {with(5, strings.Repeat("/", 40)), "request 1 is cut off, or is not"},
		"like none before":                {with(5, "BQAAAAAAAAAAAAA"), "request 1 is like one"},
		"no bytes":                        {with(5, "AAAAAAAAAAAAAAA"), "request 1 has no bytes"},
		"smaller slab":                    {with(1, "20544"), "request 6 lies beyond"},
		"larger slab":                     {with(1, "20672"), "larger than what lies in it"},
		"beyond":                          {wrote(func(p []Place, _ []int) int64 { p[5].Offset = 1 << 40; return 20608 }), "request 6 lies beyond"},
		"huge bytes":                      {wrote(func(p []Place, _ []int) int64 { p[5].Bytes = 1<<62 - 1; return 20608 }), "request 6 lies beyond"},
		"over another":                    {wrote(func(p []Place, _ []int) int64 { p[2].Offset = 64; return 20608 }), "request 3 lies over another"},
		"over one that is never released": {wrote(func(_ []Place, u []int) int64 { u[0] = 7; return 20608 }), "request 4 lies over another"},
	} {
		_, err := ReadSlab(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// FuzzReadSlab: whatever a file says, what is read of it lies in the slab and can be
// placed.
func FuzzReadSlab(f *testing.F) {
	text, _ := someTable()
	f.Add(text)
	f.Add(WriteSlab(0, []Place{{1, -1}}, []int{0}, "x"))
	f.Add(WriteSlab(1<<40, []Place{{1 << 40, 0}}, []int{1}, "x"))
	f.Fuzz(func(t *testing.T, text string) {
		table, err := ReadSlab(text)
		if err != nil {
			return
		}
		if len(table.Places) == 0 || len(table.Places) > MaxSlabRequests || table.Peak > table.Size {
			t.Errorf("%d places, peak %d of %d", len(table.Places), table.Peak, table.Size)
		}
		for i, p := range table.Places {
			if err := p.check(table.Size); err != nil || p.Bytes <= 0 || p.Offset < -1 {
				t.Errorf("request %d: %+v of %d: %v", i, p, table.Size, err)
			}
		}
	})
}
