package remat_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
)

// anchors are what the headings of a document can be linked to by, as GitHub makes them:
// lower case, without punctuation, with hyphens for blanks.
func anchors(text string) map[string]bool {
	made := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		made[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, link.ReplaceAllString(m[1], "]"))] = true
	}
	return made
}

// TestLinks: every link of the documents to a file of the tree, or to a heading, leads there.
func TestLinks(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/results/*.md", "examples/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	count := 0
	for _, page := range pages {
		data, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(data), ""), -1) {
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			count++
			file, anchor, _ := strings.Cut(m[1], "#")
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(to); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
				continue
			}
			if anchor == "" || filepath.Ext(to) != ".md" {
				continue
			}
			if text, err := os.ReadFile(to); err != nil || !anchors(string(text))[anchor] {
				t.Errorf("%s links to %s, and %s has no such heading (%v)", page, m[1], to, err)
			}
		}
	}
	if count < 20 {
		t.Errorf("%d links are found in %d pages", count, len(pages))
	}
}
