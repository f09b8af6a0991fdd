package report

import (
	"slices"
	"strings"
	"testing"
)

// TestGroups: alike buffers are one row, largest sums first; a number in a layer's
// name makes a range, and what differs in size, category, operator or module stays
// apart.
func TestGroups(t *testing.T) {
	p := &Peak{}
	add := func(value string, bytes int64, category Category, op, layer string) {
		p.Live = append(p.Live, LiveValue{Value: value, Bytes: bytes, Category: category, Op: op, Layer: Text(layer)})
	}
	for _, l := range []string{"3", "0", "1", "7"} {
		add("act"+l, 768<<10, Activations, "Mul", "model.layers."+l+".mlp.act_fn")
	}
	add("other operator", 768<<10, Activations, "Add", "model.layers.0.mlp.act_fn")
	add("other module", 768<<10, Activations, "Mul", "model.layers.0.mlp")
	add("other category", 768<<10, Gradients, "Mul", "model.layers.0.mlp.act_fn")
	add("first without a layer", 768<<10, Activations, "Mul", "")
	add("second without a layer", 768<<10, Activations, "Mul", "")
	add("whole", 4<<20, Activations, "Mul", "mlp2.fc")
	table := p.liveTable(20)
	var rows []string
	for _, r := range table.Rows {
		rows = append(rows, strings.Join(r, "|"))
	}
	want := []string{
		"4.0 MiB|activations|whole|Mul|mlp2.fc",
		"4 × 768.0 KiB|activations|act3 and 3 more|Mul|model.layers.0-1,3,7.mlp.act_fn",
		"768.0 KiB|activations|other operator|Add|model.layers.0.mlp.act_fn",
		"768.0 KiB|activations|other module|Mul|model.layers.0.mlp",
		"768.0 KiB|backward|other category|Mul|model.layers.0.mlp.act_fn",
		"768.0 KiB|activations|first without a layer|Mul|–",
		"768.0 KiB|activations|second without a layer|Mul|–",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
	if rest := p.liveTable(2).Rows[2]; rest[0] != "3.8 MiB" || rest[2] != "5 more" {
		t.Errorf("the rest: %q", rest)
	}
}

// TestFit: names lose what all begin with, then their middle; short ones stay.
func TestFit(t *testing.T) {
	got := fit([]string{"model.layers.0.attn.query", "model.layers.0.attn.key_projection", "loss", "model.layers.0.mlp"}, 24)
	if !slices.Equal(got, []string{"…attn.query", "…attn.key_projection", "loss", "model.layers.0.mlp"}) {
		t.Errorf("%q", got)
	}
	got = fit([]string{"model.layers.0.attn.query.weight", "model.layers.0.mlp.up.weight", "model.layers.0.norm.weight.and.more"}, 24)
	if !slices.Equal(got, []string{"…layers.0.a…query.weight", "…layers.0.mlp.up.weight", "…layers.0.n…ght.and.more"}) {
		t.Errorf("%q", got)
	}
	if got := fit([]string{strings.Repeat("x", 50)}, 10); got[0] != "xxxx…xxxxx" {
		t.Errorf("alone: %q", got)
	}
}

// lined is a writer with a line of its own width.
type lined struct {
	strings.Builder
	width int
}

func (l *lined) Width() int { return l.width }

// TestWidths: a table keeps to the line as far as names can be shortened, and leaves
// numbers and sentences whole.
func TestWidths(t *testing.T) {
	long := "model.layers.0." + strings.Repeat("part.", 12)
	table := Table{Columns: []string{"name", ">bytes", "node", "~why"}, Rows: [][]string{{long + "a", "1.0 MiB", long + "b", strings.Repeat("word ", 20) + "end"}}}
	for _, width := range []int{0, 80, 120, 200} {
		w := &lined{width: width}
		if err := table.Text(w); err != nil {
			t.Fatal(err)
		}
		line := strings.Split(w.String(), "\n")[1]
		if !strings.Contains(line, "word end") || !strings.Contains(line, "1.0 MiB") {
			t.Errorf("width %d: %q", width, line)
		}
		before, _, _ := strings.Cut(line, "word ")
		if n := len([]rune(before)); n > max(width, lineWidth)-leastSentence || width == 80 && n > 2*leastCell+7+3*2 {
			t.Errorf("width %d: %d letters before the sentence", width, n)
		}
	}
}
