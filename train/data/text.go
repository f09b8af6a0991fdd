package data

import (
	"context"
	"errors"
)

func (s *Source) openText(ctx context.Context, d *dataset, o Options, flag string) error {
	return errors.New("--text: coming")
}
