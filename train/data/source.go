package data

// A Source: the files of a run, opened and identified.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

// Kinds of data, as Identity.Kind has them.
const (
	kindText   = "text"
	kindTokens = "tokens"
	kindNPZ    = "npz"
)

// A Source is the data of a run, for any model.
type Source struct {
	o     Options
	train dataset
	val   *dataset // of a file of its own
	share float64  // of the training data that is validation data
	files []*os.File
	notes []string
}

// A dataset is one file, or text files that became one.
type dataset struct {
	kind  string
	name  string // for messages
	files []FileID
	// Text and tokens: an array of whole numbers of one axis, or of two, where a row
	// is a sample. Raw tokens have no type yet, and raw is their length in bytes.
	tokens *array
	raw    int64
	// checked is the vocabulary that all tokens are known to lie in, 0 for none.
	checked   int64
	tokenizer string // of text, as the identity has it
	// largest is the largest token of a text and where it stands, if it was tokenized
	// now.
	largest, largestAt int64
	// Arrays of an archive by key.
	arrays map[string]*array
}

// Open opens the data and tokenizes text. Its errors are of bad input.
func Open(ctx context.Context, o Options) (*Source, error) {
	s := &Source{o: o}
	if err := s.open(ctx); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Source) open(ctx context.Context) error {
	o := s.o
	if err := o.Check(); err != nil {
		return err
	}
	var valFile string
	if o.Val != "" {
		share, isShare, err := parseShare(o.Val)
		if err != nil {
			return err
		}
		if s.share = share; !isShare {
			valFile = o.Val
		}
	}
	if err := s.openSet(ctx, &s.train, o, ""); err != nil {
		return err
	}
	if valFile == "" {
		return nil
	}
	s.val = &dataset{}
	switch {
	case o.Text != nil:
		o.Text = []string{valFile}
	case o.Tokens != "":
		o.Tokens = valFile
	default:
		o.NPZ = valFile
	}
	return s.openSet(ctx, s.val, o, "--val")
}

// Check refuses options that contradict each other, before a file is opened.
func (o *Options) Check() error {
	given := 0
	for _, set := range []bool{len(o.Text) > 0, o.Tokens != "", o.NPZ != ""} {
		if set {
			given++
		}
	}
	if _, _, err := parseShare(o.Val); err != nil {
		return err
	}
	switch {
	case o.Evaluate && o.Val != "":
		return errors.New("--val applies only to training: all data are evaluated")
	case given == 0:
		return errors.New("no data: give --text FILE, --tokens FILE or --data F.npz")
	case given > 1:
		return errors.New("--text, --tokens and --data exclude each other: give one")
	case o.Tokenizer != "" && len(o.Text) == 0:
		return errors.New("--tokenizer applies only to --text")
	case o.TokenType != "" && o.Tokens == "":
		return errors.New("--token-type applies only to --tokens")
	case o.NPZ != "" && o.Labels != "":
		return errors.New("--labels applies only to --text and --tokens: an .npz file holds labels of its own")
	}
	switch o.TokenType {
	case "", "uint16", "uint32":
	default:
		return fmt.Errorf("--token-type %s: want uint16 or uint32", o.TokenType)
	}
	switch o.Labels {
	case "", LabelsSame, LabelsNext:
	default:
		return fmt.Errorf("--labels %s: want %s or %s", o.Labels, LabelsSame, LabelsNext)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Fill)) {
		if !slices.Contains(fillWords, o.Fill[name]) {
			return fmt.Errorf("--fill %s=%s: want one of %s", name, o.Fill[name], strings.Join(fillWords, ", "))
		}
	}
	return nil
}

// parseShare reads a share of the data, as 0.05 or 5%; anything else is a file.
func parseShare(text string) (share float64, isShare bool, err error) {
	number, percent := strings.CutSuffix(text, "%")
	x, perr := strconv.ParseFloat(number, 64)
	if perr != nil {
		return 0, false, nil
	}
	if percent {
		x /= 100
	}
	if !(x > 0 && x < 1) || math.IsNaN(x) {
		return 0, false, fmt.Errorf("--val %s: a share must lie between 0 and 1, such as 0.05 or 5%%", text)
	}
	return x, true, nil
}

// openSet opens one set of data. flag is the one that named its file, "" for the one
// of its kind.
func (s *Source) openSet(ctx context.Context, d *dataset, o Options, flag string) error {
	named := func(own string) string {
		if flag != "" {
			return flag
		}
		return own
	}
	switch {
	case o.Text != nil:
		d.kind = kindText
		return s.openText(ctx, d, o, named("--text"))
	case o.Tokens != "":
		d.kind, d.name = kindTokens, o.Tokens
		return s.openTokens(d, named("--tokens"))
	}
	d.kind, d.name = kindNPZ, o.NPZ
	return s.openArchive(d, named("--data"))
}

// openTokens opens an .npy file of whole numbers, or raw tokens.
func (s *Source) openTokens(d *dataset, flag string) error {
	f, size, err := openFile(flag, d.name)
	if err != nil {
		return err
	}
	s.files = append(s.files, f)
	id, err := identify(f, d.name, size)
	if err != nil {
		return fmt.Errorf("%s %s: %w", flag, d.name, err)
	}
	d.files = []FileID{id}
	if !isNPY(f) {
		if strings.EqualFold(filepath.Ext(d.name), ".npy") {
			return fmt.Errorf("%s %s: not an .npy file: write it with numpy.save, or name it otherwise if it holds raw tokens", flag, d.name)
		}
		d.tokens, d.raw = &array{from: f}, size
		return nil
	}
	a, err := openNPY(f, d.name, size)
	switch {
	case err != nil:
		return fmt.Errorf("%s %s: %w", flag, d.name, err)
	case !a.kind.IsInt():
		return fmt.Errorf("%s %s: an array of %s, want whole numbers", flag, d.name, a.kind)
	case len(a.shape) != 1 && len(a.shape) != 2:
		return fmt.Errorf("%s %s: shape %v, want one axis of tokens, or two of samples and tokens", flag, d.name, a.shape)
	}
	if n, _ := onnx.Elements(a.shape); n == 0 {
		return fmt.Errorf("%s %s: shape %v, no tokens in it", flag, d.name, a.shape)
	}
	d.tokens = a
	return nil
}

// isNPY looks at the first bytes.
func isNPY(f *os.File) bool {
	var magic [6]byte
	_, err := f.ReadAt(magic[:], 0)
	return err == nil && string(magic[:]) == "\x93NUMPY"
}

func (s *Source) openArchive(d *dataset, flag string) error {
	f, size, err := openFile(flag, d.name)
	if err != nil {
		return err
	}
	s.files = append(s.files, f)
	id, err := identify(f, d.name, size)
	if err == nil {
		d.files = []FileID{id}
		d.arrays, err = openNPZ(f, size)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", flag, d.name, err)
	}
	return nil
}

// Close closes the files; batches cannot be read any more.
func (s *Source) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	s.files = nil
	return errors.Join(errs...)
}
