package report

// A table is cells of finished text; text output aligns them, the page puts
// the same cells into HTML, so the two cannot disagree.
//
//	variant      live peak   saving
//	plain      2,281.2 MiB        –
//	sqrt         853.5 MiB   62.6 %

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// Table is a titled grid of text; Columns that start with '>' hold numbers and
// are aligned right, those that start with '~' hold sentences, and all others names,
// which are shortened in the middle where the line would be too long.
type Table struct {
	Title   string
	Columns []string
	Rows    [][]string
	// Note is one line under the table.
	Note string
}

// The page and JSON have all of a name or a sentence; in text maxCell is the
// longest name, leastCell the shortest that one is cut to for the width of a line,
// and maxSentence the longest sentence.
const (
	maxCell     = 56
	leastCell   = 24
	maxSentence = 400
	// leastSentence is how much of a sentence names leave room for.
	leastSentence = 50
)

// A Wide writer knows how many letters stand in a line.
type Wide interface{ Width() int }

// lineWidth is the width of a writer that does not know.
const lineWidth = 120

func widthOf(w io.Writer) int {
	if wide, ok := w.(Wide); ok && wide.Width() > 0 {
		return wide.Width()
	}
	return lineWidth
}

// cell is the text of column i, no longer than it is ever printed.
func (t *Table) cell(i int, text string) string {
	switch {
	case t.sentence(i):
		return elide(text, maxSentence)
	case t.Number(i):
		return text
	}
	return elide(text, maxCell)
}

// sentence says whether column i holds sentences.
func (t *Table) sentence(i int) bool { return strings.HasPrefix(t.Columns[i], "~") }

// add appends a row.
func (t *Table) add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Number says whether column i is aligned right.
func (t *Table) Number(i int) bool { return strings.HasPrefix(t.Columns[i], ">") }

// Head is the name of column i.
func (t *Table) Head(i int) string { return strings.TrimLeft(t.Columns[i], ">~") }

// compact drops the columns, the first apart, in which nothing applies.
func (t Table) compact() Table {
	var keep []int
	for i := range t.Columns {
		used := i == 0 || slices.ContainsFunc(t.Rows, func(r []string) bool { return r[i] != none })
		if used {
			keep = append(keep, i)
		}
	}
	c := Table{Title: t.Title, Note: t.Note, Columns: pick(t.Columns, keep)}
	for _, r := range t.Rows {
		c.Rows = append(c.Rows, pick(r, keep))
	}
	return c
}

func pick(from []string, at []int) []string {
	var to []string
	for _, i := range at {
		to = append(to, from[i])
	}
	return to
}

// Text writes the table aligned, with a blank line after it; a table without
// rows is left out.
func (t *Table) Text(w io.Writer) error {
	if len(t.Rows) == 0 {
		return nil
	}
	b := bufio.NewWriter(w)
	if t.Title != "" {
		fmt.Fprintln(b, t.Title)
	}
	width := t.widths(widthOf(w))
	heads := make([]string, len(t.Columns))
	for i := range heads {
		heads[i] = t.Head(i)
	}
	if strings.Join(heads, "") != "" {
		t.line(b, width, heads)
	}
	for _, r := range t.fitted(width) {
		t.line(b, width, r)
	}
	if t.Note != "" {
		fmt.Fprintln(b, t.Note)
	}
	fmt.Fprintln(b)
	return b.Flush()
}

// widths are those of the columns in a line of so many letters, as far as names
// can be shortened.
func (t *Table) widths(line int) []int {
	width := make([]int, len(t.Columns))
	sum := 2 * (len(width) - 1)
	for i := range t.Columns {
		width[i] = utf8.RuneCountInString(t.Head(i))
		for _, r := range t.Rows {
			width[i] = max(width[i], utf8.RuneCountInString(t.cell(i, r[i])))
		}
		if t.sentence(i) { // may run on
			sum += min(width[i], leastSentence)
		} else {
			sum += width[i]
		}
	}
	for ; sum > line; sum-- { // a letter of the widest names at a time
		widest := -1
		for i := range width {
			if !t.Number(i) && !t.sentence(i) && width[i] > leastCell && (widest < 0 || width[i] > width[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		width[widest]--
	}
	return width
}

// fitted are the rows with names that fit into the columns.
func (t *Table) fitted(width []int) [][]string {
	rows := make([][]string, len(t.Rows))
	for k := range rows {
		rows[k] = make([]string, len(t.Columns))
	}
	for i := range t.Columns {
		column := make([]string, len(rows))
		for k, r := range t.Rows {
			column[k] = r[i]
		}
		switch {
		case t.sentence(i):
			for k := range column {
				column[k] = elide(column[k], maxSentence)
			}
		case !t.Number(i):
			column = fit(column, width[i])
		}
		for k := range rows {
			rows[k][i] = column[k]
		}
	}
	return rows
}

func (t *Table) line(w io.Writer, width []int, cells []string) {
	var b strings.Builder
	for i, c := range cells {
		space := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
		if i > 0 {
			b.WriteString("  ")
		}
		if t.Number(i) {
			b.WriteString(space + c)
		} else {
			b.WriteString(c + space)
		}
	}
	fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
}

// Fact is one line of a list of keys and values.
type Fact struct {
	Key   string
	Value string
}

// Facts is a list of keys and values with aligned values.
type Facts []Fact

// Text writes the list.
func (f Facts) Text(w io.Writer) error {
	width := 0
	for _, x := range f {
		width = max(width, utf8.RuneCountInString(x.Key))
	}
	b := bufio.NewWriter(w)
	for _, x := range f {
		space := strings.Repeat(" ", width-utf8.RuneCountInString(x.Key))
		fmt.Fprintf(b, "%s%s  %s\n", x.Key, space, clean(x.Value))
	}
	return b.Flush()
}

// writeTables writes the tables one after the other.
func writeTables(w io.Writer, tables ...Table) error {
	for i := range tables {
		if err := tables[i].Text(w); err != nil {
			return err
		}
	}
	return nil
}
