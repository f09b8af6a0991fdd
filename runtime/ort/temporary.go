package ort

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// temporary holds the folders that are in use for files that ONNX Runtime
// writes and that are read back, each with the lock that says so, nil where there is none.
var temporary = struct {
	sync.Mutex
	dirs  map[string]*os.File
	swept bool
	ended bool
}{dirs: map[string]*os.File{}}

// errEnding says that the program removed its temporary folders already.
var errEnding = errors.New("no temporary folder: the program is about to end")

// RemoveTemporary takes those folders away, for a program that is about to end, and
// lets no more be made.
func RemoveTemporary() {
	temporary.Lock()
	defer temporary.Unlock()
	temporary.ended = true
	for dir := range temporary.dirs {
		if os.RemoveAll(dir) != nil {
			os.RemoveAll(dir) // ONNX Runtime, which goes on, wrote one more file
		}
	}
}

// TemporaryDir makes such a folder, for DropTemporary to remove. Its name begins with "remat-",
// a word and a dash. The first also takes away what processes that were killed left.
func TemporaryDir(pattern string) (string, error) {
	temporary.Lock()
	defer temporary.Unlock()
	if temporary.ended {
		return "", errEnding
	}
	if !temporary.swept {
		temporary.swept = true
		sweepTemporary(os.TempDir())
	}
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", fmt.Errorf("folder for temporary files: %w; TMPDIR names another", err)
	}
	temporary.dirs[dir] = lockFolder(dir)
	return dir, nil
}

// NoRoom is the error of writing some bytes to a file in a folder for temporary files, nil where
// there is room for them. ONNX Runtime does not say that there is none. What the file holds is lost.
func NoRoom(path string, bytes int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	for block := make([]byte, 1<<16); err == nil && bytes > 0; bytes -= int64(len(block)) {
		_, err = f.Write(block)
	}
	if f != nil {
		err = cmp.Or(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("%w; TMPDIR names another folder for temporary files", err)
	}
	return nil
}

// DropTemporary removes a folder that TemporaryDir made.
func DropTemporary(dir string) error {
	temporary.Lock()
	defer temporary.Unlock()
	lock := temporary.dirs[dir]
	delete(temporary.dirs, dir)
	err := os.RemoveAll(dir)
	lock.Close()
	return err
}

// inUse is the file in a temporary folder that the process which made the folder keeps locked.
const inUse = ".in-use"

var temporaryName = regexp.MustCompile(`^remat-[a-z]+-[0-9]+$`)

// lockFolder puts that file into a folder. It gets its name once it is locked, so whoever can lock
// it knows that its process is gone; where a file system has no locks there is none.
func lockFolder(dir string) *os.File {
	f, err := os.CreateTemp(dir, inUse+"-")
	if err != nil {
		return nil
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil || os.Rename(f.Name(), filepath.Join(dir, inUse)) != nil {
		os.Remove(f.Name())
		f.Close()
		return nil
	}
	return f
}

// sweepTemporary removes the temporary folders of this user's processes that were killed.
func sweepTemporary(temp string) {
	d, err := os.Open(temp)
	if err != nil {
		return
	}
	names, _ := d.Readdirnames(-1)
	d.Close()
	for _, name := range names {
		if temporaryName.MatchString(name) {
			removeAbandoned(filepath.Join(temp, name))
		}
	}
}

// removeAbandoned removes a folder whose lock nobody holds. Others may write where it lies, so it
// and the lock have to be this user's, open to nobody else, and no links.
func removeAbandoned(dir string) {
	if at, err := os.Lstat(dir); err != nil || !at.IsDir() || at.Mode().Perm()&0o077 != 0 || !ours(at) {
		return
	}
	path := filepath.Join(dir, inUse)
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if opened, err := f.Stat(); err != nil || !opened.Mode().IsRegular() || !ours(opened) {
		return
	} else if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return
	} else if at, err := os.Lstat(path); err == nil && os.SameFile(at, opened) { // else another process removed it meanwhile
		os.RemoveAll(dir) // follows no links
	}
}

// ours reports a file of the user whose process this is.
func ours(info os.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}
