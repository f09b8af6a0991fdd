package tile

// Each case of the two tables of rules with one thing changed: divided or not, it
// computes what it computed. See ortest.Variants.

import (
	"errors"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/onnx-remat/remat/internal/ortest"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/infer"
	"github.com/onnx-remat/remat/rewrite/control"
	"github.com/onnx-remat/remat/rewrite/upgrade"
)

// tried is how many variants of each case are tried, of some hundred.
const tried = 24

var extent = regexp.MustCompile(`\b([2-9]|[1-9][0-9])\b`)

// squared gives the extents of a case's inputs one number, so that no axis can be
// told from another by its extent.
func squared(body, to string) string {
	lines := strings.Split(body, "\n")
	for i, line := range lines {
		if name, shape, ok := strings.Cut(line, "["); ok && strings.HasPrefix(line, "in ") {
			lines[i] = name + "[" + extent.ReplaceAllString(shape, to)
		}
	}
	return strings.Join(lines, "\n")
}

// fewVariants picks some of a model's variants, the model itself first.
func fewVariants(t *testing.T, m *onnx.Model) []ortest.Variant {
	list := ortest.Variants(t, m)
	rng := rand.New(rand.NewPCG(1, uint64(len(list))))
	rng.Shuffle(len(list)-1, func(i, j int) { list[i+1], list[j+1] = list[j+1], list[i+1] })
	return list[:min(len(list), tried)]
}

// skipped turns a SkipError into no change.
func skipped(err error) error {
	var skip *SkipError
	if errors.As(err, &skip) {
		return nil
	}
	return err
}

func divideLoss(m *onnx.Model) (int, error) {
	if err := upgrade.Model(m, control.MinOpset); err != nil {
		return 0, err
	}
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		return 0, err
	}
	loss := m.Graph.Value("loss")
	if loss == nil {
		return 0, nil
	}
	r, err := Find(m, loss)
	if err != nil {
		return 0, skipped(err)
	}
	parts := r.Parts(2)
	if parts < 2 {
		return 0, nil
	}
	return parts, skipped(r.Apply(types, parts))
}

func divideRows(m *onnx.Model) (int, error) {
	types, err := infer.Model(m, infer.Options{})
	if err != nil {
		return 0, err
	}
	_, applied, _, err := Rows(m, types, next(m), forwardSide, minSlices)
	return applied, skipped(err)
}

func TestVariantsOfRegions(t *testing.T) {
	for _, c := range regionCases() {
		for _, side := range []string{"", "6"} {
			t.Run(c.row+"/"+c.name+side, func(t *testing.T) {
				t.Parallel()
				if side != "" {
					c.body = squared(c.text(), side)
				}
				variantsOf(t, c.row+", "+c.name+side, c.opset, c.text(), divideLoss)
			})
		}
	}
}

func TestVariantsOfRows(t *testing.T) {
	for _, c := range rowsCases {
		for _, side := range []string{"", "16"} {
			t.Run(c.row+"/"+c.name+side, func(t *testing.T) {
				t.Parallel()
				body := c.text()
				if side != "" {
					body = squared(body, side)
				}
				variantsOf(t, c.row+", "+c.name+side, "20", body, divideRows)
			})
		}
	}
}

func variantsOf(t *testing.T, name, opset, body string, pass func(*onnx.Model) (int, error)) {
	if opset == "" {
		opset = "20"
	}
	m, err := read(opset, body)
	if err == nil {
		_, err = infer.Model(m, infer.Options{})
	}
	if err != nil {
		t.Skipf("no model with these extents: %v", err)
	}
	changed, valid := 0, 0
	for _, v := range fewVariants(t, m) {
		n, ok := ortest.Compare(t, name+", "+v.What, v.Model, 1e-5, pass)
		if n > 0 {
			changed++
		}
		if ok {
			valid++
		}
	}
	t.Logf("%s: %d valid, %d changed", name, valid, changed)
}
