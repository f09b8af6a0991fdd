package corpus

import (
	"os"
	"testing"
)

func nodes(t *testing.T) []Case {
	t.Helper()
	cases, err := Nodes(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) < 1700 {
		t.Fatalf("found %d node tests, want some 1,765", len(cases))
	}
	return cases
}

func TestNodesRoundTrip(t *testing.T) {
	for _, c := range nodes(t) {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.RoundTrip(); err != nil {
				t.Error(err)
			}
		})
	}
}
