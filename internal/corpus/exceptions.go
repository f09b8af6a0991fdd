package corpus

import (
	"bufio"
	"fmt"
	"io"
	"strings"
)

// ReadExceptions reads a list of cases that are known not to pass, one per
// line: the name, a colon, the reason. # starts a comment.
func ReadExceptions(r io.Reader) (map[string]string, error) {
	out := map[string]string{}
	scanner := bufio.NewScanner(r)
	for line := 1; scanner.Scan(); line++ {
		text := strings.TrimSpace(scanner.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		name, reason, ok := strings.Cut(text, ":")
		reason = strings.TrimSpace(reason)
		if _, twice := out[name]; !ok || reason == "" || twice {
			return nil, fmt.Errorf("line %d: want a new name, a colon and a reason", line)
		}
		out[name] = reason
	}
	return out, scanner.Err()
}
