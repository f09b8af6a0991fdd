package pipeline

import "testing"

// TestSlices: the loss takes a size with a unit too, and nothing that is neither.
func TestSlices(t *testing.T) {
	for text, want := range map[string]Division{
		"": {}, "off": {}, "auto": auto, "8": Parts(8),
		"256MiB": {Mode: WithinBytes, Bytes: 256 << 20}, "1.5kB": {Mode: WithinBytes, Bytes: 1500}, "2B": {Mode: WithinBytes, Bytes: 2},
	} {
		d, err := ParseSlices(text)
		if err != nil || d != want {
			t.Errorf("%q: %v, %v", text, d, err)
		}
		if again, err := ParseSlices(d.String()); err != nil || again != d {
			t.Errorf("%q is written as %s, which reads as %v, %v", text, d, again, err)
		}
	}
	for _, text := range []string{"1", "0", "0MiB", "-1MiB", "MiB", "50%", "on", "0x10"} {
		if d, err := ParseSlices(text); err == nil {
			t.Errorf("%q: %v", text, d)
		}
	}
}

// TestDivision: what a user writes is what messages say, and nothing else is read.
func TestDivision(t *testing.T) {
	for text, want := range map[string]Division{"off": {}, "": {}, "auto": auto, "2": Parts(2), "32": Parts(32)} {
		d, err := ParseDivision(text)
		if err != nil || d != want || text != "" && d.String() != text {
			t.Errorf("%q: %v, %v", text, d, err)
		}
	}
	for _, text := range []string{"1", "0", "-1", "2x", "on"} {
		if d, err := ParseDivision(text); err == nil {
			t.Errorf("%q: %v", text, d)
		}
		if err := new(Division).UnmarshalJSON([]byte(text)); err == nil && text != "0" && text != "-1" {
			t.Errorf("%q is read from a plan file", text)
		}
	}
}
