/*
 * A page of a mapped file that somebody has shortened cannot be read any more. Go makes a panic
 * of that in its own code (debug.SetPanicOnFault); in ONNX Runtime's it ends the process, with
 * all stacks or, on a thread of ONNX Runtime's, without a word. So a program may ask for one line.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <ucontext.h>
#include <unistd.h>

#include "api.h"

#if defined(__linux__) && defined(__x86_64__)
#define PC(context) ((context)->uc_mcontext.gregs[REG_RIP])
#elif defined(__linux__) && defined(__aarch64__)
#define PC(context) ((context)->uc_mcontext.pc)
#endif

#ifdef PC

/* The program's own code, Go's among it, as the linker says. */
extern char __executable_start, etext;

static struct sigaction before; /* Go's */
static const char *text;
static size_t length;
static int status, said;

static void on_fault(int number, siginfo_t *info, void *context) {
	uintptr_t at = (uintptr_t)PC((ucontext_t *)context);
	int own = at >= (uintptr_t)&__executable_start && at < (uintptr_t)&etext;
	if (info->si_code == BUS_ADRERR && !own) {
		while (__atomic_exchange_n(&said, 1, __ATOMIC_SEQ_CST)) { /* another thread says it, and ends the process */
			pause();
		}
		if (write(STDERR_FILENO, text, length) >= 0) {
		}
		_exit(status);
	}
	before.sa_sigaction(number, info, context);
}

void ortLineOnFault(const char *line, size_t bytes, int code) {
	struct sigaction now = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	text = line;
	length = bytes;
	status = code;
	sigfillset(&now.sa_mask); /* as Go has it */
	if (sigaction(SIGBUS, NULL, &before) == 0 && before.sa_flags & SA_SIGINFO) {
		sigaction(SIGBUS, &now, NULL);
	}
}

#else

void ortLineOnFault(const char *line, size_t bytes, int code) {
}

#endif
