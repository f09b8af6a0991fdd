package runtime

// How much memory a step may take before the system ends the process for it. A
// step that would take more ends with a MemoryError instead: the least of
//
//	the machine      /proc/meminfo, MemAvailable and what is free of swap
//	control groups   memory.max less memory.current, and what of that is cached files
//	the process      RLIMIT_AS less its address space
//
// less a reserve for what is not counted: code, threads, Go's heap. Weakness: two
// processes that look at the same time see the same memory.

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/onnx-remat/remat/internal/units"
	"github.com/onnx-remat/remat/runtime/ort"
)

// reserve stays free for what the counting allocator does not see, in bytes.
const reserve = 96 << 20

// worthAsking is the size in bytes from which on the system is asked first.
const worthAsking = 1 << 20

// A MemoryError says that there is not as much memory as something needs.
type MemoryError struct {
	What            string // what needs it
	Need, Available int64  // bytes
	// Limit is Options.MemoryLimit where that is what was exceeded, else 0; Beside what
	// of it inputs and session take. Asked is the request that was refused, 0 where it
	// came to none.
	Limit, Beside, Asked int64
}

func (e *MemoryError) Error() string {
	switch {
	case e.Limit > 0 && e.Asked == 0:
		sizes := units.Distinct(e.Beside, e.Limit)
		return fmt.Sprintf("out of memory: parameters, state, feeds and session take %s before a step, the limit is %s", sizes[0], sizes[1])
	case e.Limit > 0:
		return fmt.Sprintf("out of memory: %s asks for %s where the step has %s live, beside %s of parameters, state, feeds and session: more than the limit of %s",
			e.What, units.Bytes(e.Asked), units.Bytes(e.Need-e.Asked), units.Bytes(e.Beside), units.Bytes(e.Limit))
	}
	sizes := units.Distinct(e.Need, e.Available)
	return fmt.Sprintf("out of memory: %s needs %s, %s are left", e.What, sizes[0], sizes[1])
}

// Available is how many bytes more this process may take, where pending bytes of
// what it has mapped are still to be written.
func Available(pending int64) int64 {
	memory := min(machineMemory("/proc/meminfo"), groupMemory("/proc/self/cgroup", "/sys/fs/cgroup"))
	if memory != math.MaxInt64 {
		memory -= pending
	}
	least := min(memory, addressSpace())
	if least == math.MaxInt64 {
		return least
	}
	return max(0, least-reserve)
}

// newTensor makes a tensor of zeros where there is room for it.
func newTensor(env *ort.Environment, t ort.DType, shape []int64) (*ort.Value, error) {
	if size, err := ort.ByteSize(t, shape); err == nil && size >= worthAsking {
		if left := Available(0); size > left {
			return nil, &MemoryError{What: fmt.Sprintf("a tensor of %s %v", t, shape), Need: size, Available: left}
		}
	}
	return env.NewTensor(t, shape)
}

// machineMemory is what the system can give without taking from others.
func machineMemory(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return math.MaxInt64
	}
	free, ok := field(string(data), "MemAvailable:")
	if !ok {
		return math.MaxInt64
	}
	swap, _ := field(string(data), "SwapFree:")
	return (free + swap) << 10
}

// HostMemory is the machine's memory, and what of it is available without swapping, in bytes; 0
// where the system does not say.
func HostMemory() (total, available int64) {
	data, _ := os.ReadFile("/proc/meminfo")
	total, _ = field(string(data), "MemTotal:")
	available, _ = field(string(data), "MemAvailable:")
	return total << 10, available << 10
}

// addressSpace is what the limit of the process's address space leaves.
func addressSpace() int64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil || limit.Cur > math.MaxInt64 {
		return math.MaxInt64
	}
	used, err := procStatus("VmSize:")
	if err != nil {
		return math.MaxInt64
	}
	return max(0, int64(limit.Cur)-used)
}

// groupMemory is the least that the control groups of the process leave, of
// version 2 or 1; list and root are where the system says them.
func groupMemory(list, root string) int64 {
	data, err := os.ReadFile(list)
	if err != nil {
		return math.MaxInt64
	}
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		top, limit, use, cached := root, "memory.max", "memory.current", []string{"inactive_file ", "active_file "}
		switch {
		case parts[1] == "memory":
			top = filepath.Join(root, "memory")
			limit, use, cached = "memory.limit_in_bytes", "memory.usage_in_bytes", []string{"total_inactive_file ", "total_active_file "}
		case parts[1] != "":
			continue // another controller's
		}
		// A container sees its own group as the root, whatever it is called outside.
		for dir := filepath.Clean("/" + parts[2]); ; dir = filepath.Dir(dir) {
			least = min(least, groupLeft(filepath.Join(top, dir), limit, use, cached))
			if dir == "/" {
				break
			}
		}
	}
	return least
}

// groupLeft is what one control group leaves; files that are only cached give way.
func groupLeft(dir, limit, use string, cached []string) int64 {
	bound, err1 := number(filepath.Join(dir, limit)) // "max" is none
	used, err2 := number(filepath.Join(dir, use))
	if err1 != nil || err2 != nil || bound >= 1<<60 {
		return math.MaxInt64
	}
	stat, _ := os.ReadFile(filepath.Join(dir, "memory.stat"))
	for _, key := range cached {
		n, _ := field(string(stat), key)
		used -= n
	}
	return max(0, bound-used)
}

func number(path string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
}

// field is the number behind a key that begins a line.
func field(text, key string) (int64, bool) {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
