package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func page(t *testing.T, p *Page) string {
	t.Helper()
	var b bytes.Buffer
	if err := p.HTML(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var (
	script = regexp.MustCompile(`(?s)(<script[^>]*>)(.*?)(</script>)`)
	style  = regexp.MustCompile(`(?s)(<style>)(.*?)(</style>)`)
)

// elements parses the page as XML with HTML's void elements: every element
// closed, nested and quoted. Scripts and styles are emptied before.
func elements(t *testing.T, text string) []xml.StartElement {
	t.Helper()
	bare := style.ReplaceAllString(script.ReplaceAllString(text, "$1$3"), "$1$3")
	d := xml.NewDecoder(strings.NewReader(bare))
	d.AutoClose, d.Entity = xml.HTMLAutoClose, xml.HTMLEntity
	var found []xml.StartElement
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatalf("the page is not well formed: %v", err)
		}
		if e, ok := token.(xml.StartElement); ok {
			found = append(found, e.Copy())
		}
	}
}

// fetched matches what a browser would load from elsewhere.
var fetched = regexp.MustCompile(`(?i)@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|EventSource|sendBeacon|importScripts|\.src\s*=|https?://`)

func TestPageIsSelfContained(t *testing.T) {
	for name, p := range map[string]*Page{"report": fixturePage(), "hostile": {Title: hostile, Command: "http://example.org", Compare: fixtureHostile()}} {
		text := page(t, p)
		for _, e := range elements(t, text) {
			if slices.Contains([]string{"link", "img", "iframe", "object", "embed", "base", "video", "audio", "source", "a"}, e.Name.Local) {
				t.Errorf("%s: element <%s>", name, e.Name.Local)
			}
			for _, a := range e.Attr {
				if slices.Contains([]string{"src", "href", "srcset", "action", "background", "poster", "data"}, a.Name.Local) || strings.HasPrefix(a.Name.Local, "on") {
					t.Errorf("%s: <%s %s=%q>", name, e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
		for _, own := range []string{pageCSS, pageJS} {
			if at := fetched.FindString(own); at != "" {
				t.Errorf("the page's own style or script holds %q", at)
			}
		}
		if !strings.Contains(text, `content="default-src &#39;none&#39;; script-src`) && !strings.Contains(text, `content="default-src 'none'; script-src`) {
			t.Errorf("%s: no content security policy", name)
		}
		if len(text) > 3<<20 {
			t.Errorf("%s: %d bytes", name, len(text))
		}
	}
}

// The library is inserted as it is, and brings no way out of its element.
func TestLibrary(t *testing.T) {
	if strings.Contains(strings.ToLower(echartsJS+pageJS), "</script") {
		t.Error("a script ends its own element")
	}
	if !strings.Contains(page(t, fixturePage()), echartsJS) {
		t.Error("the chart library is not on the page unchanged")
	}
	for _, word := range []string{"fetch(", "XMLHttpRequest", "WebSocket", "importScripts"} {
		if strings.Contains(echartsJS, word) {
			t.Errorf("the chart library holds %q", word)
		}
	}
}

func chartData(t *testing.T, text string) []map[string]any {
	t.Helper()
	_, rest, ok := strings.Cut(text, `<script type="application/json" id="chart-data">`)
	data, _, closed := strings.Cut(rest, "</script>")
	if !ok || !closed {
		t.Fatal("no chart data on the page")
	}
	var list []map[string]any
	if err := json.Unmarshal([]byte(data), &list); err != nil {
		t.Fatalf("chart data: %v", err)
	}
	return list
}

func TestPageHasEveryChart(t *testing.T) {
	text := page(t, fixturePage())
	var ids []string
	for _, c := range chartData(t, text) {
		id := c["id"].(string)
		ids = append(ids, id)
		if strings.Count(text, `id="chart-`+id+`"`) != 1 || strings.Count(text, `id="legend-`+id+`"`) != 1 {
			t.Errorf("chart %s has not one place on the page", id)
		}
	}
	for _, id := range []string{"timeline", "timeline-0", "timeline-1", "timeline-2", "peak", "time", "phases", "loss", "trade", "plan-1", "pareto-1", "plan-2", "pareto-2"} {
		if !slices.Contains(ids, id) {
			t.Errorf("no chart %s on the page; it has %v", id, ids)
		}
	}
	if n := strings.Count(text, `class="chart"`); n != len(ids) {
		t.Errorf("%d places for %d charts", n, len(ids))
	}
}

// What the charts draw is what the documents say.
func TestChartsAgree(t *testing.T) {
	p := fixturePage()
	text := page(t, p)
	for _, c := range chartData(t, text) {
		if c["tip"] != "live" {
			continue
		}
		i := int(c["id"].(string)[len("timeline-")] - '0')
		top := 0.0
		sums := map[int]float64{}
		for _, s := range c["option"].(map[string]any)["series"].([]any) {
			series := s.(map[string]any)
			for j, d := range series["data"].([]any) {
				if series["name"] != "peak" {
					sums[j] += d.(float64)
					top = max(top, sums[j])
				}
			}
		}
		if want := p.Compare.Models[i].Peak.TotalBytes; int64(top) != want {
			t.Errorf("%s reaches %.0f, the peak is %d", c["id"], top, want)
		}
		if live := c["live"].(map[string]any); len(live["points"].([]any)) != len(sums) {
			t.Errorf("%s: hints for %d of %d points", c["id"], len(live["points"].([]any)), len(sums))
		}
	}
}

// Every cell of the text tables is on the page.
func TestTablesAgree(t *testing.T) {
	p := fixturePage()
	text := page(t, p)
	cells := map[string]bool{}
	for _, m := range regexp.MustCompile(`<td[^>]*>([^<]*)</td>`).FindAllStringSubmatch(text, -1) {
		cells[strings.NewReplacer("&#43;", "+", "&amp;", "&").Replace(m[1])] = true
	}
	tables := p.Compare.tables()
	for _, m := range p.Compare.Models {
		tables = append(tables, m.topTimeTable(), m.topMemoryTable(), m.memoryTable())
	}
	for _, table := range tables {
		for _, r := range table.Rows {
			for _, c := range r {
				if !cells[c] {
					t.Errorf("table %q: cell %q is not on the page", table.Title, c)
				}
			}
		}
	}
}

// Names that try to become markup stay text.
func TestHostileNames(t *testing.T) {
	text := page(t, &Page{Title: hostile, Command: hostile, Facts: Facts{{Key: hostile, Value: hostile}}, Compare: fixtureHostile()})
	elements(t, text)
	if n := strings.Count(strings.ToLower(text), "<script"); n != 3 {
		t.Errorf("%d script elements, want 3", n)
	}
	for _, bad := range []string{"<script>alert", "<img", "\u2028", "\u202e", "\x1b"} {
		if strings.Contains(script.ReplaceAllString(text, ""), bad) {
			t.Errorf("the page holds %q", bad)
		}
	}
	if len(chartData(t, text)) == 0 {
		t.Error("no charts")
	}
}

func TestPageNeedsRuns(t *testing.T) {
	if err := (&Page{}).HTML(io.Discard); err == nil {
		t.Error("a page of nothing was written")
	}
	page(t, &Page{Compare: &Compare{Models: []*Run{{}}}})
}

// A step of 20,000 events in six variants stays a small page.
func TestPageSize(t *testing.T) {
	c := &Compare{}
	for range 6 {
		c.Models = append(c.Models, fixtureRun("deep", 180, 6, 1))
	}
	if n := len(c.Models[0].Timeline.Events); n < 18000 {
		t.Fatalf("only %d events", n)
	}
	if n := len(page(t, &Page{Compare: c})); n > 5<<19 {
		t.Errorf("%d bytes", n)
	}
}
