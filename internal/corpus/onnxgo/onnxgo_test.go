package onnxgo

import (
	"sort"
	"testing"
)

func TestCasesRoundTrip(t *testing.T) {
	cases := Cases()
	if len(cases) != 348 {
		t.Errorf("%d cases, want 348", len(cases))
	}
	if !sort.SliceIsSorted(cases, func(i, j int) bool { return cases[i].Name < cases[j].Name }) {
		t.Error("the cases are not sorted")
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.RoundTrip(); err != nil {
				t.Error(err)
			}
			sets, err := c.Sets()
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range append(sets[0].Inputs, sets[0].Outputs...) {
				if x == nil {
					continue
				}
				if _, err := x.Bytes(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
