/*
 * malloc keeps to one arena: each thread's own would reserve 64 MiB of address space,
 * and keep what sessions of planning have left in it, which came to 150 MiB for a graph
 * of 48 layers. What is allocated often lies in the counting allocator.
 *
 * A limit of the address space (ulimit -v) that is too small for Go to begin ends
 * the process before Go does, with a line in place of the runtime's stacks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* What Go may reserve and map by itself, in bytes: below it may fail at any moment,
 * depending on the places that the system gives it. */
static const rlim_t least = (rlim_t)3 << 29;

__attribute__((constructor)) static void look_at_address_space(void) {
#ifdef M_ARENA_MAX
	mallopt(M_ARENA_MAX, 1);
#endif
	struct rlimit limit;
	if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= least) {
		return;
	}
	char line[256];
	int n = snprintf(line, sizeof line,
		"%s: out of memory: the address space is limited to %llu MiB (ulimit -v), and the program may reserve more than that before it begins: raise the limit to 4 GiB, or limit memory with a control group\n",
		program_invocation_short_name, (unsigned long long)(limit.rlim_cur >> 20));
	if (n > 0 && write(STDERR_FILENO, line, (size_t)n < sizeof line ? (size_t)n : sizeof line - 1) >= 0) {
	}
	_exit(2);
}
