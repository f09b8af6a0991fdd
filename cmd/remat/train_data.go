package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	remat "github.com/onnx-remat/remat/runtime"
)

func trainDataFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "data", Usage: "`F.npz`: values of inputs by name, whose leading axis is the batch"},
		&cli.Uint64Flag{Name: "seed", Usage: "seed of random operators, `N`"},
	}
}

type stacked map[string]remat.Tensor

func (s stacked) At(n int64) (map[string]remat.Tensor, error) {
	batch := map[string]remat.Tensor{}
	for name, t := range s {
		count := t.Shape[0]
		size := int64(len(t.Data)) / count
		k := n % count
		batch[name] = remat.Tensor{Type: t.Type, Shape: t.Shape[1:], Data: t.Data[k*size : (k+1)*size]}
	}
	return batch, nil
}

func (s stacked) Len() int64 {
	for _, t := range s {
		return t.Shape[0]
	}
	return 0
}

func openBatches(c *cli.Context) (stacked, error) {
	values, err := remat.ReadNPZ(c.String("data"))
	if err != nil {
		return nil, err
	}
	for name, t := range values {
		if len(t.Shape) == 0 || t.Shape[0] == 0 {
			return nil, fmt.Errorf("--data: key %q has no batches", name)
		}
	}
	return stacked(values), nil
}
