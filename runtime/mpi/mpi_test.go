package mpi

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// clean forgets what a launcher of the tests themselves has said.
func clean(t *testing.T) {
	t.Helper()
	for _, l := range launcher {
		for _, key := range []string{l.rank, l.size} {
			t.Setenv(key, "")
		}
	}
	t.Setenv(LibraryKey, "")
}

// TestLaunched: what launchers put into the environment is seen, and nothing else.
func TestLaunched(t *testing.T) {
	for _, c := range []struct {
		env      map[string]string
		launched bool
		ranks    int
		first    string
	}{
		{nil, false, 0, "libmpi.so.40"},
		{map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "PMIX_RANK": "1"}, true, 4, "libmpi.so.40"},
		{map[string]string{"PMI_RANK": "0", "PMI_SIZE": "3"}, true, 3, "libmpi.so.12"},
		{map[string]string{"PMIX_RANK": "0"}, true, 0, "libmpi.so.40"},
		{map[string]string{"PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "1"}, false, 1, "libmpi.so.40"},
		{map[string]string{"PMI_RANK": "0", "PMI_SIZE": "1"}, false, 1, "libmpi.so.12"},
		{map[string]string{"SLURM_STEP_NUM_TASKS": "4"}, false, 0, "libmpi.so.40"}, // nothing connects them
		{map[string]string{"PMI_RANK": "0", "PMI_SIZE": "many", LibraryKey: "/opt/libmpi.so"}, true, 0, "/opt/libmpi.so"},
	} {
		t.Run("", func(t *testing.T) {
			clean(t)
			for key, value := range c.env {
				t.Setenv(key, value)
			}
			if Launched() != c.launched || expected() != c.ranks || libraries()[0] != c.first {
				t.Errorf("%v: %t, %d ranks, %v", c.env, Launched(), expected(), libraries())
			}
		})
	}
}

// TestNoLibrary: without the library, or with another one, there is one line. A process
// of its own tries, as what is loaded stays.
func TestNoLibrary(t *testing.T) {
	if path := os.Getenv("REMAT_TEST_JOIN"); path != "" {
		_, err := Join()
		if err == nil {
			t.Fatal("joined")
		}
		t.Log("it said: " + err.Error())
		return
	}
	for path, want := range map[string]string{"/none/libmpi.so": "no MPI library (/none/libmpi.so", "libdl.so.2": "no MPI library (MPI_Init_thread)"} {
		c := exec.Command(os.Args[0], "-test.run", "^TestNoLibrary$", "-test.v")
		c.Env = append(os.Environ(), "REMAT_TEST_JOIN=1", "PMI_RANK=0", "PMI_SIZE=2", LibraryKey+"="+path)
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "it said: started as a rank, but there is "+want) {
			t.Errorf("%s: %v: %s", path, err, out)
		}
	}
}
