package ortest

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// Layers is the text of so many layers, each with its number for every # and that of the next
// for every +.
func Layers(layers int, text string) string {
	var b strings.Builder
	for i := range layers {
		b.WriteString(strings.NewReplacer("#", fmt.Sprint(i), "+", fmt.Sprint(i+1)).Replace(text))
	}
	return b.String()
}

// GrowsWithTheGraph checks that work on eight times as many layers as the few allocates at most
// twelve times as much. Prepare makes a graph of so many layers and returns the work on it.
func GrowsWithTheGraph(t *testing.T, few int, prepare func(layers int) (work func())) {
	t.Helper()
	allocated := func(layers int) int64 {
		work := prepare(layers)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		work()
		runtime.ReadMemStats(&after)
		return int64(after.TotalAlloc - before.TotalAlloc)
	}
	many := 8 * few
	small, large := allocated(few), allocated(many)
	if t.Logf("%d layers: %d bytes allocated on the way, %d: %d", few, small, many, large); large > 12*small {
		t.Errorf("%d layers: %d bytes allocated on the way, %d layers: %d, more than twelve times as many", few, small, many, large)
	}
}
