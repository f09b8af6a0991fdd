package pipeline

// Where the weights of a file go that is written into another folder than its
// source's. A model refers to files in its own folder and below only, so
//
//	source's folder below the new file's   it refers to them there
//	else                                   copies, in weights/ beside the new file
//
// A copy shares its blocks with the original where the file system can do that. It is
// no link: whoever writes over the original must not change a training that goes on.

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/onnx"
)

// WeightsFolder is where copies go.
const WeightsFolder = "weights"

// places says where the data files of a source lie for a file written elsewhere.
type places struct {
	from  *onnx.Files   // of the source
	files *onnx.Outputs // with which copies get to their places
	out   string        // the new file's folder
	// below is the way from the one to the other, "" where files are copied.
	below  string
	copies map[string]string // by location in the source
	taken  map[string]bool
	say    func(format string, args ...any)
}

func newPlaces(source *Source, files *onnx.Outputs, out string, say func(string, ...any)) (*places, error) {
	rel, err := between(out, source.Path)
	if err != nil {
		return nil, err
	}
	p := &places{from: source.Model.Files(), files: files, out: filepath.Dir(out), below: rel, copies: map[string]string{}, taken: map[string]bool{}, say: say}
	if !filepath.IsLocal(rel) {
		p.below = ""
	}
	return p, nil
}

// at is where the new file finds what the source has at a location.
func (p *places) at(location string) (string, error) {
	if p.below != "" {
		return filepath.ToSlash(filepath.Join(p.below, location)), nil
	}
	clean := filepath.ToSlash(filepath.Clean(filepath.FromSlash(location)))
	if to, ok := p.copies[clean]; ok {
		return to, nil
	}
	name := filepath.Base(clean)
	for n := 2; p.taken[name]; n++ {
		name = fmt.Sprintf("%d-%s", n, filepath.Base(clean))
	}
	to := WeightsFolder + "/" + name
	if err := p.copy(clean, filepath.Join(p.out, WeightsFolder, name)); err != nil {
		return "", err
	}
	p.taken[name], p.copies[clean] = true, to
	return to, nil
}

// copy copies a data file of the source, which must lie in the source's folder.
func (p *places) copy(location, to string) error {
	path, err := p.from.Resolve(location)
	if err != nil {
		return err
	}
	in, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s: not a regular file", path)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	p.say("copying %s of weights to %s", units.Bytes(info.Size()), filepath.Dir(to))
	return p.files.Replace(to, func(out *os.File) error {
		if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) == nil {
			return nil
		}
		_, err := io.Copy(out, in)
		return err
	})
}

// move makes all references of a model right for the new file.
func (p *places) move(m *onnx.Model) error {
	if _, err := m.MoveExternal(p.at); err != nil {
		return err
	}
	_, err := moveParameters(m, p.at)
	return err
}

// Within is where the source lies for files in dir, which refer to its weights: where it
// is, or a copy under the name, with its weights, that it writes there.
func (s *Source) Within(dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	rel, err := between(path, s.Path)
	if err != nil || filepath.IsLocal(rel) || len(s.DataFiles()) == 0 {
		return s.Path, err
	}
	m, err := s.Model.Clone()
	if err != nil {
		return "", err
	}
	return path, onnx.Together(func(files *onnx.Outputs) error {
		p, err := newPlaces(s, files, path, func(string, ...any) {})
		if err != nil {
			return err
		}
		if err := p.move(m); err != nil {
			return err
		}
		return m.SaveWith(files, path)
	})
}
