// Package mpi moves bytes between the processes that an MPI launcher started: mpirun,
// mpiexec, or srun of a Slurm with PMIx or PMI.
//
// The library is loaded when it is needed, so the program is built without MPI and runs
// where there is none. Two binary interfaces cover what is in use, and are told apart by
// a symbol: Open MPI's, whose handles are addresses of exported objects
// (ompi_mpi_comm_world, …), and that of MPICH, Intel MPI, Cray MPI and MVAPICH, whose
// handles are the integers that all of them have agreed on (www.mpich.org/abi). Of MPI
// seven functions are used, and no type of its headers but those handles.
package mpi

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>

enum { THREAD_SERIALIZED = 2 };

// What both interfaces share.
static int (*init_thread)(int *, char ***, int, int *);
static int (*finalize)(void);
static int (*error_string)(int, char *, int *);

// Open MPI: handles are pointers.
static struct {
	int (*rank)(void *, int *), (*size)(void *, int *), (*abort)(void *, int), (*handler)(void *, void *);
	int (*sendrecv)(const void *, int, void *, int, int, void *, int, void *, int, int, void *, void *);
	void *world, *byte, *errors_return;
} open_mpi;

// MPICH: handles are integers.
static struct {
	int (*rank)(int, int *), (*size)(int, int *), (*abort)(int, int), (*handler)(int, int);
	int (*sendrecv)(const void *, int, int, int, int, void *, int, int, int, int, int, void *);
} mpich;
enum { MPICH_WORLD = 0x44000000, MPICH_BYTE = 0x4c00010d, MPICH_ERRORS_RETURN = 0x54000001 };
#define MPICH_STATUS_IGNORE ((void *)1)

static int is_open;
static void *library;

// load opens a library and returns what it lacks, NULL for nothing. Plugins of the
// library look its symbols up, so they are global.
static const char *load(const char *path) {
	static const char *names[] = {"MPI_Init_thread", "MPI_Finalize", "MPI_Error_string", "MPI_Comm_rank",
		"MPI_Comm_size", "MPI_Abort", "MPI_Comm_set_errhandler", "MPI_Sendrecv"};
	void *f[8];
	if (!(library = dlopen(path, RTLD_NOW | RTLD_GLOBAL)))
		return dlerror();
	for (int i = 0; i < 8; i++)
		if (!(f[i] = dlsym(library, names[i])))
			return names[i];
	*(void **)&init_thread = f[0], *(void **)&finalize = f[1], *(void **)&error_string = f[2];
	open_mpi.world = dlsym(library, "ompi_mpi_comm_world");
	is_open = open_mpi.world != NULL;
	if (is_open) {
		*(void **)&open_mpi.rank = f[3], *(void **)&open_mpi.size = f[4], *(void **)&open_mpi.abort = f[5];
		*(void **)&open_mpi.handler = f[6], *(void **)&open_mpi.sendrecv = f[7];
		open_mpi.byte = dlsym(library, "ompi_mpi_byte");
		open_mpi.errors_return = dlsym(library, "ompi_mpi_errors_return");
		if (!open_mpi.byte || !open_mpi.errors_return)
			return "ompi_mpi_byte";
	} else {
		*(void **)&mpich.rank = f[3], *(void **)&mpich.size = f[4], *(void **)&mpich.abort = f[5];
		*(void **)&mpich.handler = f[6], *(void **)&mpich.sendrecv = f[7];
	}
	return NULL;
}

// begin initializes MPI; serialized says that its calls may come from any thread, one at
// a time.
static int begin(int *serialized, int *rank, int *size) {
	int provided = 0, err = init_thread(NULL, NULL, THREAD_SERIALIZED, &provided);
	*serialized = provided >= THREAD_SERIALIZED;
	if (err)
		return err;
	err = is_open ? open_mpi.handler(open_mpi.world, open_mpi.errors_return) : mpich.handler(MPICH_WORLD, MPICH_ERRORS_RETURN);
	if (!err)
		err = is_open ? open_mpi.rank(open_mpi.world, rank) : mpich.rank(MPICH_WORLD, rank);
	if (!err)
		err = is_open ? open_mpi.size(open_mpi.world, size) : mpich.size(MPICH_WORLD, size);
	return err;
}

static int exchange(int to, const void *send, int sent, int from, void *recv, int received) {
	if (is_open)
		return open_mpi.sendrecv(send, sent, open_mpi.byte, to, 0, recv, received, open_mpi.byte, from, 0, open_mpi.world, NULL);
	return mpich.sendrecv(send, sent, MPICH_BYTE, to, 0, recv, received, MPICH_BYTE, from, 0, MPICH_WORLD, MPICH_STATUS_IGNORE);
}

static void stop(int code) {
	if (is_open)
		open_mpi.abort(open_mpi.world, code);
	else
		mpich.abort(MPICH_WORLD, code);
}

static int end(void) { return finalize(); }

// text writes what an error means into 1024 bytes.
static void text(int err, char *to) {
	int n = 0;
	if (error_string(err, to, &n))
		snprintf(to, 1024, "error %d", err);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"
)

// LibraryKey is the variable of the environment that names the library.
const LibraryKey = "REMAT_MPI"

// launcher are the variables by which a launcher tells a process that it is a rank, each
// with that of their number.
var launcher = []struct{ rank, size string }{
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}, // Open MPI's mpirun
	{"PMI_RANK", "PMI_SIZE"},                         // MPICH's mpiexec, srun --mpi=pmi2
	{"PMIX_RANK", "SLURM_STEP_NUM_TASKS"},            // srun --mpi=pmix
}

// Launched says that a launcher started this process as one of several ranks; one that
// is alone needs no library.
func Launched() bool {
	return expected() != 1 && slices.ContainsFunc(launcher, func(l struct{ rank, size string }) bool { return os.Getenv(l.rank) != "" })
}

// expected is how many ranks the launcher says there are, 0 where it does not.
func expected() int {
	for _, l := range launcher {
		if n, err := strconv.Atoi(os.Getenv(l.size)); err == nil && n > 0 && os.Getenv(l.rank) != "" {
			return n
		}
	}
	return 0
}

// libraries are where the library is looked for.
func libraries() []string {
	if path := os.Getenv(LibraryKey); path != "" {
		return []string{path}
	}
	open, mpich := []string{"libmpi.so.40"}, []string{"libmpi.so.12", "libmpich.so.12"}
	if os.Getenv("PMI_RANK") != "" && os.Getenv("OMPI_COMM_WORLD_RANK") == "" {
		open, mpich = mpich, open
	}
	return append(slices.Concat(open, mpich), "libmpi.so")
}

// A World is all processes that were started together. Its calls come one at a time.
type World struct{ rank, size int }

// Join loads the library and joins the other processes. It is called once.
func Join() (*World, error) {
	path, err := load()
	if err != nil {
		return nil, err
	}
	var serialized, rank, size C.int
	if err := check(C.begin(&serialized, &rank, &size)); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	w := &World{int(rank), int(size)}
	if serialized == 0 {
		return nil, errors.Join(fmt.Errorf("%s: was built for calls from one thread only: use one that has MPI_THREAD_SERIALIZED", path), w.Close())
	}
	if n := expected(); n > 1 && n != w.size {
		return nil, errors.Join(fmt.Errorf("%s: sees %d of %d ranks: it is not that of the launcher: name that one in %s", path, w.size, n, LibraryKey), w.Close())
	}
	return w, nil
}

func load() (string, error) {
	var first string
	for _, path := range libraries() {
		name := C.CString(path)
		lacks := C.load(name)
		C.free(unsafe.Pointer(name))
		if lacks == nil {
			return path, nil
		}
		if first == "" {
			first = strings.Join(strings.Fields(C.GoString(lacks)), " ")
		}
	}
	return "", fmt.Errorf("started as a rank, but there is no MPI library (%s): install the launcher's, or name it in %s", first, LibraryKey)
}

// check makes an error of what MPI returned.
func check(code C.int) error {
	if code == 0 {
		return nil
	}
	var text [1024]C.char
	C.text(code, &text[0])
	return errors.New("MPI: " + strings.Join(strings.Fields(C.GoString(&text[0])), " "))
}

// Rank is which of the processes this is, from 0.
func (w *World) Rank() int { return w.rank }

// Size is how many processes there are.
func (w *World) Size() int { return w.size }

// Exchange sends bytes to a rank while it receives from another one.
func (w *World) Exchange(to int, send []byte, from int, recv []byte) error {
	if max(len(send), len(recv)) > math.MaxInt32 {
		return fmt.Errorf("a message of %d bytes is too long for MPI", max(len(send), len(recv)))
	}
	return check(C.exchange(C.int(to), unsafe.Pointer(unsafe.SliceData(send)), C.int(len(send)),
		C.int(from), unsafe.Pointer(unsafe.SliceData(recv)), C.int(len(recv))))
}

// Beside says that calls may come from another thread than the one that computes, one at a
// time: Join asked MPI for that.
func (w *World) Beside() bool { return true }

// Abort ends all processes.
func (w *World) Abort(code int) { C.stop(C.int(code)) }

// Close leaves the others. All do so before they end.
func (w *World) Close() error { return check(C.end()) }
