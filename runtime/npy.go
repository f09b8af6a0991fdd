package runtime

// numpy's files: .npy is a header and the elements, .npz a zip of them.
//
//	\x93NUMPY major minor length {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//
// Read here because float16, bool, all integers, column order and hostile
// headers have to work. bfloat16 is not a numpy type: ml_dtypes writes it as
// '<V2' (raw bytes), which is read as bfloat16. Objects, strings and complex numbers
// are refused in a file; in an archive they are tensors without a type, which no
// input takes.

import (
	"archive/zip"
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/onnx-remat/remat/onnx"
)

const npyMagic = "\x93NUMPY"

// npyTypes maps numpy's kind and size to element types.
var npyTypes = map[string]onnx.DType{
	"f2": onnx.Float16, "f4": onnx.Float32, "f8": onnx.Float64, "V2": onnx.BFloat16, "b1": onnx.Bool,
	"i1": onnx.Int8, "i2": onnx.Int16, "i4": onnx.Int32, "i8": onnx.Int64,
	"u1": onnx.Uint8, "u2": onnx.Uint16, "u4": onnx.Uint32, "u8": onnx.Uint64,
}

// ErrNotNumeric marks arrays of strings, objects or records.
var ErrNotNumeric = errors.New("not a numeric array")

// ReadNPY reads a .npy file.
func ReadNPY(path string) (Tensor, error) {
	f, err := os.Open(path)
	if err != nil {
		return Tensor{}, fmt.Errorf("feed: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Tensor{}, fmt.Errorf("feed: %w", err)
	}
	t, err := decodeNPY(bufio.NewReaderSize(f, 1<<16), info.Size())
	if err != nil {
		return Tensor{}, fmt.Errorf("feed %s: %w", path, err)
	}
	return t, nil
}

// ReadNPZ reads the arrays of a .npz file by key. What is not an array of numbers has
// no type.
func ReadNPZ(path string) (map[string]Tensor, error) {
	z, err := zip.OpenReader(path)
	if errors.Is(err, zip.ErrFormat) {
		return nil, fmt.Errorf("feeds %s: not an .npz file, or truncated: write it with numpy.savez", path)
	}
	if err != nil {
		return nil, fmt.Errorf("feeds %s: %w", path, onnx.PathCause(err))
	}
	defer z.Close()
	out := map[string]Tensor{}
	for _, f := range z.File {
		key, ok := strings.CutSuffix(f.Name, ".npy")
		if !ok {
			continue
		}
		t, err := ReadNPZEntry(f)
		if errors.Is(err, ErrNotNumeric) {
			t, err = Tensor{}, nil
		}
		if err != nil {
			return nil, fmt.Errorf("feeds %s: key %q: %w", path, key, err)
		}
		out[key] = t
	}
	return out, nil
}

// ReadNPZEntry reads one array of an archive.
func ReadNPZEntry(f *zip.File) (Tensor, error) {
	r, err := f.Open()
	if err != nil {
		return Tensor{}, err
	}
	defer r.Close()
	// The size in a zip's directory is a claim; deflate shrinks to a
	// thousandth at best.
	size := int64(f.UncompressedSize64)
	if f.UncompressedSize64 > 1100*f.CompressedSize64+1<<16 {
		return Tensor{}, fmt.Errorf("the archive declares %d bytes for %d compressed", f.UncompressedSize64, f.CompressedSize64)
	}
	in := bufio.NewReaderSize(r, 1<<16)
	t, err := decodeNPY(in, size)
	if damage := toEnd(in); damage != nil && !errors.Is(err, ErrNotNumeric) {
		return Tensor{}, damage // what a damaged stream decodes to says less
	}
	return t, err
}

// CheckNPZEntry compares one array of an archive with its checksum.
func CheckNPZEntry(f *zip.File) error {
	r, err := f.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	return toEnd(r)
}

// toEnd reads what is left of an entry: a zip compares its checksum there alone, which
// an array's elements need not reach.
func toEnd(r io.Reader) error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("the archive is damaged (%w): write it again", err)
	}
	return nil
}

var npyHeader = regexp.MustCompile(`^\s*\{\s*'descr':\s*(?:'([^']*)'|\[.*\])\s*,\s*'fortran_order':\s*(True|False)\s*,\s*'shape':\s*\(([^)]*)\)\s*,?\s*\}\s*$`)

// An NPYHeader says what the elements of an .npy file are.
type NPYHeader struct {
	Type  onnx.DType
	Shape []int64
	// Bytes is the header's length: where the elements begin.
	Bytes                  int64
	bigEndian, columnOrder bool
}

// Plain reports elements that lie as a Tensor has them: little-endian, row by row.
func (h NPYHeader) Plain() bool {
	return (!h.bigEndian || h.Type.Size() == 1) && (!h.columnOrder || len(h.Shape) < 2)
}

// Size is the length of the elements in bytes.
func (h NPYHeader) Size() int64 {
	n, _ := onnx.Elements(h.Shape)
	return n * h.Type.Size()
}

// ReadNPYHeader reads the header of a stream that is size bytes long, and checks
// that the elements fit into it. What is not an array of numbers is an error.
func ReadNPYHeader(r io.Reader, size int64) (NPYHeader, error) {
	header, headerBytes, err := readHeader(r)
	if err != nil {
		return NPYHeader{}, err
	}
	m := npyHeader.FindStringSubmatch(header)
	if m == nil {
		return NPYHeader{}, errors.New("not a numpy header")
	}
	descr := m[1]
	if len(descr) < 3 || npyTypes[descr[1:]] == onnx.Undefined {
		return NPYHeader{}, fmt.Errorf("type %q: %w", descr, ErrNotNumeric)
	}
	h := NPYHeader{Type: npyTypes[descr[1:]], Shape: []int64{}, Bytes: headerBytes, bigEndian: descr[0] == '>', columnOrder: m[2] == "True"}
	for s := range strings.SplitSeq(m[3], ",") {
		if s = strings.TrimSpace(s); s == "" {
			continue
		}
		d, err := strconv.ParseInt(strings.TrimSuffix(s, "L"), 10, 64)
		if err != nil || d < 0 {
			return NPYHeader{}, fmt.Errorf("invalid shape (%s)", m[3])
		}
		h.Shape = append(h.Shape, d)
	}
	n, ok := onnx.Elements(h.Shape)
	if !ok || n > (size-headerBytes)/h.Type.Size() {
		return NPYHeader{}, fmt.Errorf("%s%v is longer than the file", h.Type, h.Shape)
	}
	return h, nil
}

// decodeNPY reads an array of a stream that is size bytes long.
func decodeNPY(r io.Reader, size int64) (Tensor, error) {
	h, err := ReadNPYHeader(r, size)
	if err != nil {
		return Tensor{}, err
	}
	t := Tensor{h.Type, h.Shape, make([]byte, h.Size())}
	if _, err := io.ReadFull(r, t.Data); err != nil {
		return Tensor{}, fmt.Errorf("truncated: %w", err)
	}
	if h.bigEndian {
		swapBytes(t.Data, t.Type.Size())
	}
	if h.columnOrder {
		t.Data = rowOrder(t)
	}
	return t, nil
}

func readHeader(r io.Reader) (string, int64, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil || string(head[:6]) != npyMagic {
		return "", 0, errors.New("not an .npy file: write it with numpy.save")
	}
	width := 2
	if head[6] >= 2 {
		width = 4
	}
	var length [4]byte
	if _, err := io.ReadFull(r, length[:width]); err != nil {
		return "", 0, errors.New("truncated header")
	}
	n := binary.LittleEndian.Uint32(length[:])
	if n > 1<<20 {
		return "", 0, fmt.Errorf("a header of %d bytes is too long", n)
	}
	header := make([]byte, n)
	if _, err := io.ReadFull(r, header); err != nil {
		return "", 0, errors.New("truncated header")
	}
	return string(header), int64(8 + width + len(header)), nil
}

func swapBytes(data []byte, size int64) {
	for e := range slices.Chunk(data, int(size)) {
		slices.Reverse(e)
	}
}

// rowOrder turns column order into row order.
func rowOrder(t Tensor) []byte {
	strides, step := make([]int64, len(t.Shape)), int64(1)
	for i, d := range t.Shape {
		strides[i] = step
		step *= d
	}
	size := t.Type.Size()
	out := make([]byte, 0, len(t.Data))
	for at := range onnx.Strided(t.Shape, strides, 0) {
		out = append(out, t.Data[at*size:(at+1)*size]...)
	}
	return out
}

// EncodeNPY writes a tensor as .npy; bfloat16 becomes '<V2'.
func EncodeNPY(w io.Writer, t Tensor) error {
	descr := ""
	for d, dt := range npyTypes {
		if dt == t.Type {
			descr = d
		}
	}
	if descr == "" {
		return fmt.Errorf("numpy has no type for %s arrays", t.Type)
	}
	order := "<"
	if t.Type.Size() == 1 {
		order = "|"
	}
	var dims []string
	for _, d := range t.Shape {
		dims = append(dims, strconv.FormatInt(d, 10))
	}
	shape := strings.Join(dims, ", ")
	if len(dims) == 1 {
		shape += ","
	}
	header := fmt.Sprintf("{'descr': '%s%s', 'fortran_order': False, 'shape': (%s), }", order, descr, shape)
	pad := (64 - (10+len(header)+1)%64) % 64
	header += strings.Repeat(" ", pad) + "\n"
	var b bytes.Buffer
	b.WriteString(npyMagic + "\x01\x00")
	b.Write(binary.LittleEndian.AppendUint16(nil, uint16(len(header))))
	b.WriteString(header)
	if _, err := w.Write(b.Bytes()); err != nil {
		return err
	}
	_, err := w.Write(t.Data)
	return err
}

// WriteNPZ writes tensors by key, beside path and then in its place.
func WriteNPZ(path string, tensors map[string]Tensor) error {
	return onnx.ReplaceFile(path, func(f *os.File) error {
		z := zip.NewWriter(f)
		for _, key := range slices.Sorted(maps.Keys(tensors)) {
			w, err := z.CreateHeader(&zip.FileHeader{Name: key + ".npy", Method: zip.Store})
			if err != nil {
				return err
			}
			if err := EncodeNPY(w, tensors[key]); err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
		}
		return z.Close()
	})
}
