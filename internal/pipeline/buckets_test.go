package pipeline

// A step in buckets: what a graph reads in the slab is what was written there for it, and
// sums stay until they are updated from. A judge that knows no placing runs the graphs on
// paper, by who wrote to each part of the slab last.

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/onnx-remat/remat/internal/step"
	"github.com/onnx-remat/remat/models"
	"github.com/onnx-remat/remat/onnx"
	"github.com/onnx-remat/remat/rewrite/grad"
	"github.com/onnx-remat/remat/rewrite/optim"
)

// summing makes a graph that sums gradients, and its graph of updates.
func summing(t *testing.T, name string, layers int64) (*Source, *onnx.Model) {
	t.Helper()
	row, err := models.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	c := row.Default
	c.Layers = layers
	built, err := row.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	update := optim.Defaults(optim.AdamW)
	update.Sums = true
	path := filepath.Join(t.TempDir(), "m.onnx")
	if err := built.SaveBare(path); err != nil {
		t.Fatal(err)
	}
	forward, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forward.Close() })
	d, err := forward.Derive(DeriveOptions{Grad: grad.Options{Dialect: grad.DialectONNX}, Update: update})
	if err != nil {
		t.Fatal(err)
	}
	src := &Source{Path: "t.onnx", Model: d.Model, hash: "test"}
	given, err := src.Sized(nil)
	if err != nil {
		t.Fatal(err)
	}
	var params []*onnx.Value
	for _, p := range d.Params {
		params = append(params, p.Input)
	}
	updates, err := optim.Updates(given, params, update)
	if err != nil {
		t.Fatal(err)
	}
	return src, updates
}

// A slabJudge knows who wrote to each piece of the slab last.
type slabJudge struct {
	t     *testing.T
	rooms map[string]Room
	last  []string
}

func (j *slabJudge) pieces(name string) []string {
	r := j.rooms[name]
	bytes, ok := r.Bytes()
	if !ok || r.Offset%roomAlign != 0 {
		j.t.Fatalf("%s: at %d, %s", name, r.Offset, r.Type)
	}
	return j.last[r.Offset/roomAlign : (r.Offset+bytes+roomAlign-1)/roomAlign]
}

func (j *slabJudge) write(name, as string) {
	for i := range j.pieces(name) {
		j.pieces(name)[i] = as
	}
}

func (j *slabJudge) read(by, name, as string) {
	for _, of := range j.pieces(name) {
		if of != as {
			j.t.Fatalf("%s reads %q, over which %q was written", by, as, of)
		}
	}
}

func TestBucketsInOneSlab(t *testing.T) {
	for _, c := range []struct {
		model   string
		layers  int64
		buckets int
	}{{"gpt2-tiny", 4, 2}, {"gpt2-tiny", 4, 4}, {"gpt2-tiny", 7, 5}, {"mlp", 6, 3}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			src, updates := summing(t, c.model, c.layers)
			b, err := src.BucketsOf(updates, c.buckets, Options{Threads: 1, OptLevel: 1})
			if err != nil {
				t.Fatal(err)
			}
			j := &slabJudge{t, b.Rooms, make([]string, (b.Bytes+roomAlign-1)/roomAlign)}
			var before *BucketGraph // whose sums wait for their updates
			update := func() {
				if before != nil {
					for _, sum := range before.Sums {
						j.read("the update", sum, sum)
					}
				}
			}
			whole, updated := int64(0), 0
			for i := range b.Graphs {
				g := &b.Graphs[i]
				roles, _, err := step.RolesOf(g.Model, nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, in := range g.Model.Graph.Inputs { // written while it runs, whenever
					if _, ok := b.Rooms[in.Name]; ok && roles.New[in.Name] != "" {
						as := roles.New[in.Name]
						for _, sum := range g.Sums {
							if sum == in.Name {
								as = sum
							}
						}
						j.write(in.Name, as)
					}
				}
				for _, in := range g.Model.Graph.Inputs {
					if _, ok := b.Rooms[in.Name]; ok && roles.New[in.Name] == "" {
						j.read(g.Name, in.Name, in.Name)
					}
				}
				if g.Update == nil {
					continue
				}
				update()
				before, updated = g, updated+len(g.Sums)
				for _, sum := range g.Sums {
					n, _ := b.Rooms[sum].Bytes()
					whole += n
				}
			}
			update()
			if updated != len(b.Sums) || updated == 0 || len(b.Graphs) != 2*c.buckets-1 {
				t.Errorf("%d of %d sums in %d graphs", updated, len(b.Sums), len(b.Graphs))
			}
			if c.model == "mlp" && b.Bytes >= whole { // whose activations are small
				t.Errorf("a slab of %d bytes, where all sums are %d", b.Bytes, whole)
			}
		})
	}
}
