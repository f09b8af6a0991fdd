package report

// The page is one file without a reference to anything outside: style, the
// chart library, the data and the script that draws are inside, and a content
// security policy makes the browser refuse the rest. Tables come from the
// same cells as the text output, charts from the same documents as the JSON.

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/internal/units"
)

var (
	//go:embed assets/page.html
	pageHTML string
	//go:embed assets/page.css
	pageCSS string
	//go:embed assets/page.js
	pageJS string
	//go:embed assets/echarts.common.min.js
	echartsJS string

	pageTemplate = template.Must(template.New("page").Parse(pageHTML))
)

// Page is the report of a comparison; a single run is a comparison of one.
type Page struct {
	Title string
	// Command is what was typed, for repeating it.
	Command string
	// Facts say on what machine and with what versions.
	Facts   Facts
	Compare *Compare
	// Sweep, unless nil, is what the page shows in place of a comparison.
	Sweep *Sweep
}

// Below is the page as the template sees it.

type pageView struct {
	Title, Command string
	Facts          Facts
	Cards          []cardView
	Sections       []sectionView
	Style          template.CSS
	Data           template.JS
	Library        template.JS
	Script         template.JS
}

type cardView struct {
	Name, Big, What string
	Lines           []string
	Color           template.CSS
	Failed          bool
}

type sectionView struct {
	Title, Text string
	Charts      []chartView
	Tables      []tableView
	Folds       []foldView
}

type chartView struct {
	ID, Title, Caption string
	Height             int
	Wide               bool
}

type foldView struct {
	Title  string
	Open   bool
	Tables []tableView
}

type tableView struct {
	Title, Note string
	Slim        bool // few columns: not stretched over the page
	Head        []cellView
	Rows        [][]cellView
}

type cellView struct {
	Text   string
	Number bool
}

// HTML writes the page.
func (p *Page) HTML(w io.Writer) error {
	view := pageView{Title: clean(p.Title), Command: clean(p.Command)}
	var drawn []chart
	switch {
	case p.Sweep != nil:
		drawn = p.Sweep.charts()
		view.Cards, view.Sections = p.Sweep.cards(), p.Sweep.sections(drawn)
	case p.Compare == nil || len(p.Compare.Models) == 0:
		return fmt.Errorf("report: a page needs at least one run")
	default:
		drawn = p.Compare.charts()
		view.Cards, view.Sections = p.Compare.cards(), p.Compare.sections(drawn)
		if p.Compare.Rehearsed() {
			view.Facts = append(view.Facts, Fact{Key: "rehearsed", Value: NoNumbers})
		}
	}
	view.Facts = append(view.Facts, p.Facts.clean()...)
	return view.write(w, drawn)
}

// write fills the template; drawn are the charts that the sections have places for.
func (v pageView) write(w io.Writer, drawn []chart) error {
	// json.Marshal escapes <, > and &, so no name can end the script element.
	data, err := json.Marshal(list(drawn))
	if err != nil {
		return fmt.Errorf("report: charts: %w", err)
	}
	v.Style, v.Data = template.CSS(pageCSS), template.JS(data)
	v.Library, v.Script = template.JS(echartsJS), template.JS(pageJS)
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, v); err != nil {
		return fmt.Errorf("report: page: %w", err)
	}
	_, err = w.Write(b.Bytes())
	return err
}

// clean makes keys and values printable.
func (f Facts) clean() Facts {
	var c Facts
	for _, x := range f {
		c = append(c, Fact{Key: clean(x.Key), Value: clean(x.Value)})
	}
	return c
}

// cards are the figures to see first, one card for each variant.
func (c *Compare) cards() []cardView {
	var cards []cardView
	names := c.names()
	for i, m := range c.Models {
		card := cardView{Name: names[i], Color: template.CSS(variantColor(i))}
		p := c.pairOf(i)
		switch {
		case m.Error != "":
			card.Failed, card.Big, card.What = true, "failed", clean(string(m.Error))
		case p != nil && p.Saving != nil:
			saving, word := float64(*p.Saving), "less"
			if saving < 0 {
				saving, word = -saving, "more"
			}
			card.Big, card.What = units.Percent(saving), word+" live memory than "+names[0]
		default:
			card.Big, card.What = BytesOr(m.Memory.LivePeakBytes), "live peak"
		}
		if p != nil && p.Saving != nil {
			card.Lines = append(card.Lines, "live peak "+BytesOr(m.Memory.LivePeakBytes))
		}
		if m.Memory.TotalPeakBytes != nil {
			card.Lines = append(card.Lines, "total peak "+BytesOr(m.Memory.TotalPeakBytes))
		}
		if t := units.Seconds(m.MedianSeconds()); t != none {
			if p != nil && p.Overhead != nil {
				t += " (" + units.Signed(float64(*p.Overhead)) + ")"
			}
			card.Lines = append(card.Lines, "step "+t)
		}
		if m.Error == "" {
			card.Lines = append(card.Lines, p.verdict()...)
		}
		cards = append(cards, card)
	}
	return cards
}

// verdict says in a line how far the results are from the first variant's.
func (p *Pair) verdict() []string {
	switch {
	case p == nil:
		return nil
	case p.BitIdentical != nil && *p.BitIdentical:
		return []string{"loss and gradients: same bits"}
	case p.RelativeGradient != nil:
		return []string{fmt.Sprintf("gradients within %.2g (relative)", float64(*p.RelativeGradient))}
	case p.Loss != nil:
		return []string{"loss differs by " + units.Number(float64(*p.Loss))}
	}
	return nil
}

// sections put charts and tables in the order of reading.
func (c *Compare) sections(drawn []chart) []sectionView {
	scale := ""
	if len(c.Models) > 1 {
		scale = ", all variants at one scale"
	}
	step := sectionView{Title: "Memory over the step", Text: "From the first operator of the step to the last" + scale + ". Hover or tap to see what is live."}
	side := sectionView{Title: "Side by side"}
	var said []string
	for i := range c.Pairs {
		said = append(said, c.Sentence(i))
	}
	side.Text = strings.Join(said, " ")
	plans := sectionView{Title: "Plans", Text: "What each rewritten variant keeps for the backward pass, and what it recomputes."}
	for _, d := range drawn {
		v := d.view(false)
		switch {
		case d.Tip == "overlay" || d.Tip == "live":
			v.Wide = d.Tip == "overlay" || len(c.Models) == 1
			step.Charts = append(step.Charts, v)
		case d.ID == "peak" || d.ID == "time" || d.ID == "phases" || d.ID == "loss" || d.ID == "trade":
			side.Charts = append(side.Charts, v)
		default:
			plans.Charts = append(plans.Charts, v)
		}
	}
	if n := len(side.Charts); n%2 == 1 {
		side.Charts[n-1].Wide = true
	}
	for _, t := range c.tables() {
		side.Tables = append(side.Tables, viewTable(t))
	}
	details := sectionView{Title: "Every variant", Text: "What is live at the peak, and all sizes."}
	if slices.ContainsFunc(c.Models, func(m *Run) bool { return len(m.TopTime) > 0 }) {
		details.Text = "Top operators (from one more step, timed node by node), what is live at the peak, and all sizes."
	}
	for i, m := range c.Models {
		name := c.names()[i]
		details.Folds = append(details.Folds, foldView{Title: name, Open: i == 0, Tables: m.detailTables()})
		if m.Plan != nil {
			plans.Folds = append(plans.Folds, foldView{Title: "Plan of " + name, Tables: m.Plan.views()})
		}
	}
	var used []sectionView
	for _, s := range []sectionView{step, side, plans, details} {
		if len(s.Charts)+len(s.Tables)+len(s.Folds) > 0 {
			used = append(used, s)
		}
	}
	return used
}

func (r *Run) detailTables() []tableView {
	tables := []Table{r.topTimeTable(), r.topMemoryTable()}
	tables = append(tables, r.stepMemoryTables(25)...)
	tables = append(tables, r.memoryTable(), r.stepsTable())
	return viewTables(tables)
}

func (p *Plan) views() []tableView {
	return viewTables([]Table{p.summaryTable(), p.totalTable(), p.layersTable(), p.paretoTable(), p.notesTable()})
}

func viewTables(tables []Table) []tableView {
	var views []tableView
	for _, t := range tables {
		if len(t.Rows) > 0 {
			views = append(views, viewTable(t))
		}
	}
	return views
}

func viewTable(t Table) tableView {
	v := tableView{Title: t.Title, Note: t.Note, Slim: len(t.Columns) <= 4}
	for i := range t.Columns {
		v.Head = append(v.Head, cellView{Text: t.Head(i), Number: t.Number(i)})
	}
	for _, r := range t.Rows {
		var row []cellView
		for i, c := range r {
			row = append(row, cellView{Text: c, Number: t.Number(i)})
		}
		v.Rows = append(v.Rows, row)
	}
	return v
}
