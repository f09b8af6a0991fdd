// Package ortversion names the ONNX Runtime that this module is made for, and what
// follows from it.
//
//	refused │ Oldest … Current … Newest │ opened, but not tried
//
// To move to another release, change Current and run the tests: each table
// that was measured with a release names it, and fails until it is made again.
// To try another one beside it, run make test-ort VERSION=…; where all passes,
// it may be Newest.
package ortversion

import (
	"strconv"
	"strings"
)

const (
	// Current is the release that is installed, and that every table of
	// measured facts describes.
	Current = "1.31.1"
	// Oldest is the first release that is known to work; older ones are refused,
	// others from it on are tried.
	Oldest = "1.24.1"
	// Newest is the last release that the tests of exactness passed with, on the CPU.
	Newest = "1.32.0"
)

// Libraries holds the sha256 of libonnxruntime.so of that release by platform
// and build, where it was seen.
var Libraries = map[string]string{
	"linux/amd64 cpu":  "fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3",
	"linux/amd64 cuda": "5104254339ecadae808da771bd0b63b240f0dbd466514234905e54372435c303",
	"linux/arm64 cpu":  "8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467",
}

// Older compares dotted versions; what is not a number counts as 0.
func Older(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range bs {
		var x, y int
		if i < len(as) {
			x, _ = strconv.Atoi(as[i])
		}
		y, _ = strconv.Atoi(bs[i])
		if x != y {
			return x < y
		}
	}
	return false
}
