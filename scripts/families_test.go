package scripts

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestFamiliesPage: the page says what each row found, what a family has to
// write, and what fails with the way out; PyTorch is not needed for that.
func TestFamiliesPage(t *testing.T) {
	const program = `
import types, families_page
def model(name, **kw):
    m = types.SimpleNamespace(name=name, family="language", exporter="dynamo", switches=(), grad=(), random=False, out="", **kw)
    m.written = lambda flags: " ".join([*m.switches, *m.grad * flags])
    return m
plain, failing, adapter, drawn = model("plain"), model("failing"), model("adapter"), model("drawn")
plain.switches, failing.out, drawn.random = ("eager",), "write the sum out", True
adapter.grad = ("--params", "*lora_*")
counts = lambda n, frozen=0: {"trained": n + frozen, "expected": n, "missing": [], "frozen": ["w"] * frozen, "extra": []}
entry = {"commit": "0ff1ce", "faults": [], "seconds": {"export": 1.2, "grad": 0.1, "full": 2.6}, "exported": {"bare": "fails: no view"},
    "default": counts(7), "gradient": {"worst": 3e-7, "where": "w", "of": 7}, "equal": True,
    "peaks": {"given": 4096, "full": 3072, "sqrt": 2048}, "bits": {"full": 0.0, "sqrt": 4e-8}, "predicted": [True, True, False]}
kept = {"plain": entry, "failing": {"commit": "0ff1ce", "faults": ["grad: exit 2: no gradient rule for operator Foo"], "seconds": {"export": 3}, "exported": {}},
    "adapter": {**entry, "default": counts(4, 3), "flagged": counts(4)}, "drawn": {**entry, "gradient": None, "bits": {"full": 0.0}}}
families_page.write("OUT", [plain, failing, adapter, drawn, model("not measured")], kept, ["lang*"])
`
	out := t.TempDir() + "/families.md"
	c := exec.Command("python3", "-B", "-c", strings.Replace(program, "OUT", out, 1))
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	raw, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(raw)), " ")
	for _, want := range []string{
		"`scripts/families.py --only 'lang*' --out docs/results/families.md`, commit 0ff1ce",
		"4 models, 3 without fault; predicted = measured in 6 of 9 runs",
		"| plain | language | dynamo; eager | 7 of 7 | 3e-07 | equal | 4 → 3 / 2 / - KiB | sqrt 4e-08 | 2 of 3 | 0 / 3 / - / - |",
		"| 4 of 4 + 3 frozen |",
		"| drawn | equal |", "| same bits |",
		"- plain: eager (without: fails: no view)", "- adapter: --params *lora_* (without", "- drawn: as it is (without",
		"- **failing**: grad: exit 2: no gradient rule for operator Foo Way out: write the sum out",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, raw)
		}
	}
	if strings.Contains(page, "not measured") {
		t.Error("a model without results is in the page")
	}
}
