package data

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/onnx"
)

func TestAdhoc(t *testing.T) {
	dir := os.Getenv("ADHOC")
	if dir == "" {
		t.Skip()
	}
	files, _ := filepath.Glob(dir)
	tokens := make([]byte, 2*200000)
	for i := range 200000 {
		tokens[2*i] = byte(i * 7 % 60)
	}
	for _, f := range files {
		m, err := onnx.Load(f)
		if err != nil {
			fmt.Println(f, err)
			continue
		}
		d, err := open(t, m, Options{Tokens: file(t, "t.bin", tokens), TokenType: "uint16", Val: "10%"}, Sizes{Dims: map[string]int64{"seq": 16, "batch": 2, "sequence": 16}})
		if err != nil {
			fmt.Println(filepath.Base(f), "ERR", err)
			continue
		}
		b, err := d.Train.At(0)
		fmt.Println(filepath.Base(f), d.Notes, d.Mapping.Vocabulary, d.Mapping.Ignored, d.Train.Samples(), d.Val.Samples(), d.Val.Len(), d.Train.Tokens(b), err)
	}
}
