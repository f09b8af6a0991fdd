package nulldevice

// Whether a GPU build of ONNX Runtime can run on the null device, from its files alone:
// its version, and that every function of CUDA that it is linked to is stood in for. The dynamic
// loader would end the process at the first call of one that is missing.

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/onnx-remat/remat/runtime/ortversion"
)

// providerFile is the CUDA provider's library, beside ONNX Runtime's.
const providerFile = "libonnxruntime_providers_cuda.so"

// symbolVersion is the version that the functions of ONNX Runtime carry.
const symbolVersion = "VERS_" + ortversion.Current

// Check looks at the build that library, a libonnxruntime.so, belongs to. Errors are
// *SetupError, but for ErrUnsupported.
func Check(library string) error {
	stand := libraries()
	if stand == nil {
		return ErrUnsupported
	}
	if err := checkVersion(library); err != nil {
		return err
	}
	provider := filepath.Join(filepath.Dir(library), providerFile)
	if _, err := os.Stat(provider); errors.Is(err, fs.ErrNotExist) {
		return &SetupError{library, "a build without CUDA: run remat doctor --install cuda"}
	}
	f, err := openLibrary(provider)
	if err != nil {
		return err
	}
	defer f.Close()
	if why := missing(f, stand); why != "" {
		return &SetupError{provider, why}
	}
	return nil
}

func openLibrary(path string) (*elf.File, error) {
	f, err := elf.Open(path)
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return nil, &SetupError{path, at.Err.Error()}
	}
	if err != nil {
		return nil, &SetupError{path, fmt.Sprintf("not a shared library: %v", err)}
	}
	return f, nil
}

// checkVersion reads the version that ONNX Runtime's own symbols carry.
func checkVersion(library string) error {
	f, err := openLibrary(library)
	if err != nil {
		return err
	}
	defer f.Close()
	versions, err := f.DynamicVersions()
	if err != nil {
		return &SetupError{library, err.Error()}
	}
	// Version 1 is the library itself; its own follows.
	i := slices.IndexFunc(versions, func(v elf.DynamicVersion) bool { return v.Index == versionOwn })
	if i < 0 {
		return &SetupError{library, "no version of ONNX Runtime in it"}
	}
	if got := versions[i].Name; got != symbolVersion {
		return &SetupError{library, fmt.Sprintf("its symbols are of %s: the null device is made for ONNX Runtime %s (remat doctor --install cuda)",
			got, ortversion.Current)}
	}
	return nil
}

// ofCUDA says whether a library or a function without a version is CUDA's, by its name.
func ofCUDA(name string) bool {
	for _, p := range []string{"libcu", "libnv", "libnccl", "__cuda", "nvrtc", "nvml"} {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	rest, ok := strings.CutPrefix(name, "cu")
	return ok && rest != "" && (rest[0] >= 'A' && rest[0] <= 'Z' || slices.ContainsFunc([]string{"da", "blas", "rand", "dnn", "fft", "solver", "sparse"},
		func(s string) bool { return strings.HasPrefix(rest, s) }))
}

// missing names what of CUDA a file needs and nothing stands in for, "" for nothing.
func missing(f *elf.File, stand []*sharedLibrary) string {
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err.Error()
	}
	for _, name := range needed {
		if ofCUDA(name) && !slices.ContainsFunc(stand, func(l *sharedLibrary) bool { return l.soname == name }) {
			return fmt.Sprintf("needs %s, which has no stand-in", name)
		}
	}
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return err.Error()
	}
	have := map[elf.ImportedSymbol]bool{}
	for _, l := range stand {
		for _, s := range l.symbols {
			have[elf.ImportedSymbol{Name: s.name, Version: l.version}] = true
		}
	}
	for _, s := range symbols {
		required := s.Section == elf.SHN_UNDEF && elf.ST_BIND(s.Info) == elf.STB_GLOBAL
		if !required || !ofCUDA(s.Name) && !ofCUDA(s.Version) {
			continue
		}
		if !have[elf.ImportedSymbol{Name: s.Name, Version: s.Version}] {
			return fmt.Sprintf("needs %s, which has no stand-in", strings.Trim(s.Name+"@"+s.Version, "@"))
		}
	}
	return ""
}
