package ort

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestIndexes compares every index with the place of its function in the
// header that yalue's module carries.
func TestIndexes(t *testing.T) {
	order := headerOrder(t)
	if order["ReleaseEnv"] != 92 {
		t.Fatalf("the header was not understood: ReleaseEnv is at %d", order["ReleaseEnv"])
	}
	entries := apiEntries()
	if len(entries) < 60 {
		t.Fatalf("only %d functions listed", len(entries))
	}
	for _, e := range entries {
		if index, ok := order[e.name]; !ok || index != e.index {
			t.Errorf("%s: index %d, header has %d (%v)", e.name, e.index, index, ok)
		}
	}
}

// headerOrder lists the members of struct OrtApi by place.
func headerOrder(t *testing.T) map[string]int {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/yalue/onnxruntime_go").Output()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "onnxruntime_c_api.h"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	_, text, _ = strings.Cut(text, "struct OrtApi {")
	text, _, ok := strings.Cut(text, "\n};")
	if !ok {
		t.Fatal("no struct OrtApi in the header")
	}
	text = regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`//[^\n]*|(?m)^\s*#.*$`).ReplaceAllString(text, "")
	member := regexp.MustCompile(`ORT_API2_STATUS\(\s*(\w+)|ORT_CLASS_RELEASE2?\(\s*(\w+)|\(\s*ORT_API_CALL\s*\*\s*(\w+)\s*\)|ORT_API_T\([^,]*,\s*(\w+)`)
	order := map[string]int{}
	for i, m := range member.FindAllStringSubmatch(text, -1) {
		switch {
		case m[1] != "":
			order[m[1]] = i
		case m[2] != "":
			order["Release"+m[2]] = i
		default:
			order[m[3]] = i
		}
	}
	return order
}
