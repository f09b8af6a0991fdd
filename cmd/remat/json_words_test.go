package main

import (
	"encoding/json"
	"testing"
)

// TestPlainJSON: what a file holds in the wrong place is said without words of Go.
func TestPlainJSON(t *testing.T) {
	type inner struct {
		Keep  []string           `json:"keep"`
		Bytes int64              `json:"bytes"`
		Share float64            `json:"share"`
		Name  string             `json:"name"`
		On    bool               `json:"on"`
		Sub   map[string]string  `json:"sub"`
		Type  struct{ A string } `json:"type"`
	}
	for text, want := range map[string]string{
		`7`:                  `wants an object, got number`,
		`{"keep": 7}`:        `"keep": wants a list, got number`,
		`{"keep": [{}]}`:     `"keep": wants text, got object`,
		`{"bytes": 1.5}`:     `"bytes": wants a whole number, got number 1.5`,
		`{"bytes": 1e99}`:    `"bytes": wants a whole number, got number 1e99`,
		`{"share": "x"}`:     `"share": wants a number, got string`,
		`{"name": []}`:       `"name": wants text, got array`,
		`{"on": 1}`:          `"on": wants true or false, got number`,
		`{"sub": {"a": 7}}`:  `"sub": wants text, got number`,
		`{"type": true}`:     `"type": wants an object, got bool`,
		`{"sub": true}`:      `"sub": wants an object, got bool`,
		`{"keep": ["a", 7]}`: `"keep": wants text, got number`,
	} {
		var v inner
		err := json.Unmarshal([]byte(text), &v)
		if err == nil {
			t.Fatalf("%s parses", text)
		}
		if got := plainJSON("f.json: " + err.Error() + ": write it anew"); got != "f.json: "+want+": write it anew" {
			t.Errorf("%s: %q, want %q (%v)", text, got, want, err)
		}
		if got := plainJSON("f.json: not a plan (" + err.Error() + "): write one"); got != "f.json: not a plan ("+want+"): write one" {
			t.Errorf("%s in brackets: %q", text, got)
		}
	}
}
