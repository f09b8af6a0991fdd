package pipeline

// Whether constant weights are held once or packed: what a copy takes of memory
// against what packing a weight in every step takes of time. A product packs the
// whole weight, however few rows it multiplies; from about sixteen rows on, the
// multiplication takes longer than that. A single row is multiplied as it stands.

import (
	"fmt"

	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/onnx/traits"
	"github.com/onnx-remat/remat/rewrite"
	"github.com/onnx-remat/remat/runtime/predict"
)

// Prepacking says whether kernels keep packed copies of constant weights.
type Prepacking string

// Kinds of prepacking. PackFew leaves copies only of weights whose products
// have so few rows that packing takes longer than multiplying; "" is PackFew.
const (
	PackFew Prepacking = "auto"
	PackAll Prepacking = "on"
	PackNo  Prepacking = "off"
)

// ParsePrepacking reads what --prepack says; "" is auto.
func ParsePrepacking(s string) (Prepacking, error) {
	switch p := Prepacking(s); p {
	case "":
		return PackFew, nil
	case PackFew, PackAll, PackNo:
		return p, nil
	}
	return "", fmt.Errorf("--prepack %q: want auto, on or off", s)
}

// fewRows is the number of rows below which packing takes longer.
const fewRows = 16

// readsPlainly reports an operator whose kernel reads a weight as it stands at no
// memory. Recurrent ones are left out: they multiply few rows by it, many times.
func readsPlainly(n *onnx.Node) bool { return traits.IsMatrixProduct(n) || n.Is("ConvTranspose") }

// holdOnce keeps the CPU's products from holding packed copies of constant
// weights.
func (w *rewriting) holdOnce() error {
	o := &w.variant.Options
	if o.Prepack == PackAll || !o.provider().Packs {
		return nil
	}
	report, err := rewrite.HoldOnce(w.model.Graph, rewrite.Copies{
		Bytes: func(n *onnx.Node, i int) int64 {
			if !readsPlainly(n) {
				return 0
			}
			return predict.Packed(n, i)
		},
		Leave: func(v *onnx.Value) string {
			rows := mostRows(v)
			if o.Prepack == PackNo || rows < 2 || rows >= fewRows {
				return ""
			}
			return fmt.Sprintf("its products have only %d rows, and packing it in every step would take longer: --prepack off holds it once anyway", rows)
		},
		Updated: func(v *onnx.Value) bool { return w.analysis.Roles.New[v.Name] != "" },
	})
	if err != nil {
		return err
	}
	if report.Requested > 0 {
		w.reports = append(w.reports, report)
	}
	return w.passed("hold once")
}

// mostRows is the largest number of rows that some product multiplies by a
// weight; fewRows where one is not known.
func mostRows(weight *onnx.Value) int64 {
	most := int64(0)
	for _, u := range weight.Uses() {
		if u.Index != 1 || u.Node.Is("ConvTranspose") {
			continue
		}
		dims, known := u.Node.In(0).Type.Shape.Ints()
		if !known || len(dims) == 0 {
			return fewRows
		}
		rows, _ := onnx.Elements(dims[:len(dims)-1])
		if u.Node.Int("transA", 0) != 0 {
			rows, _ = onnx.Elements(dims[1:])
		}
		most = max(most, rows)
	}
	return most
}
