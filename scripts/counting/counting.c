/* Counts what ONNX Runtime holds in a program of any language; cmd/remat's tests compile and
 * preload it.
 *
 *   cc -O2 -fPIC -shared counting.c -o counting.so -ldl -lpthread
 *   COUNTED=file LD_PRELOAD=./counting.so program
 *
 * ONNX Runtime takes values by C++'s aligned new, at multiples of 64, each by itself where
 * its arena is off. The file COUNTED becomes two numbers of 8 bytes: the most that it held at
 * once, and the least between two moments when it held so much, which is what it holds between
 * two equal steps; 0 if there were no two. It is mapped, since not every language ends a
 * program by C's exit. A header before each block holds its size. Calls from other libraries
 * pass through.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { VALUE = 64 }; /* the alignment of values; a pool of threads has another */

struct counted {
  long long peak, rest;
};
static struct counted nowhere, *counted = &nowhere;
static long long live, low; /* low: the least since the peak */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void map(void) {
  const char *path = getenv("COUNTED");
  int file = path ? open(path, O_RDWR | O_CREAT, 0644) : -1;
  if (file < 0) return;
  void *at = ftruncate(file, sizeof *counted) ? MAP_FAILED : mmap(NULL, sizeof *counted, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (at != MAP_FAILED) counted = at;
  close(file);
}

static void add(long long n) {
  pthread_mutex_lock(&lock);
  live += n;
  if (live > counted->peak) {
    *counted = (struct counted){live, 0};
    low = live;
  } else if (live == counted->peak) {
    if (!counted->rest || low < counted->rest) counted->rest = low;
    low = live;
  }
  if (live < low) low = live;
  pthread_mutex_unlock(&lock);
}

/* The library's file is libonnxruntime.so, or Python's module. */
static int counts(size_t alignment, const void *caller) {
  Dl_info where;
  if (alignment != VALUE || !dladdr(caller, &where) || !where.dli_fname) return 0;
  const char *name = strrchr(where.dli_fname, '/');
  return strstr(name ? name : where.dli_fname, "onnxruntime") != NULL;
}

/* operator new(size_t, std::align_val_t) */
void *_ZnwmSt11align_val_t(size_t n, size_t alignment) {
  size_t header = counts(alignment, __builtin_return_address(0)) ? VALUE : 0;
  void *block;
  if (posix_memalign(&block, alignment, n + header)) abort();
  if (!header) return block;
  *(size_t *)block = n;
  add((long long)n);
  return (char *)block + header;
}

static void release(void *p, size_t alignment, const void *caller) {
  if (p && counts(alignment, caller)) {
    p = (char *)p - VALUE;
    add(-(long long)*(size_t *)p);
  }
  free(p);
}

/* operator delete(void *, std::align_val_t), and with the size */
void _ZdlPvSt11align_val_t(void *p, size_t alignment) { release(p, alignment, __builtin_return_address(0)); }
void _ZdlPvmSt11align_val_t(void *p, size_t n, size_t alignment) {
  (void)n;
  release(p, alignment, __builtin_return_address(0));
}
