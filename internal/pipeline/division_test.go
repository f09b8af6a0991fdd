package pipeline

import "testing"

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
