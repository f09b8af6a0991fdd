//go:build linux && amd64

// Device memory and the counters.
//
//	cudaMalloc(n) ──▶ n bytes of addresses that nobody may touch (PROT_NONE)
//	contents      ──▶ a sparse file in memory; a byte's offset is its address
//
// So the host can no more read a device pointer than on a machine with a GPU,
// and pages exist only where something was written. Transfers of up to kReal
// bytes are done; larger ones transfer zeros, which free the pages they cover. What
// a kernel would have written reads as what was there before, zeros in fresh memory.
//
// One lock guards the table of blocks and the counters.
#define _GNU_SOURCE
#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

// The largest transfer that is done, in bytes.
enum { kReal = 1 << 20, kPage = 4096 };

// Beyond the addresses of user space.
static const off_t kContents = (off_t)1 << 47;

typedef struct {
  char *start;
  size_t bytes;  // as asked for
  int kind, device;
} Block;

static struct {
  pthread_mutex_t mu;
  int64_t memory;
  int devices;
  int contents;  // the file, -1 before device_open
  Block *blocks;  // by address
  size_t count, room;
  int64_t live[kMaxDevices];
  Counters counters;
} dev = {.mu = PTHREAD_MUTEX_INITIALIZER, .contents = -1};

static void lock(void) { pthread_mutex_lock(&dev.mu); }
static void unlock(void) { pthread_mutex_unlock(&dev.mu); }

static size_t pages(size_t n) { return (n + kPage - 1) & ~(size_t)(kPage - 1); }

// open_contents makes the file of contents; the lock is held.
static const char *open_contents(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < (rlim_t)kContents)
    return "the size of files is limited (ulimit -f unlimited is needed)";
  int fd = memfd_create("remat-device", MFD_CLOEXEC);
  if (fd < 0) return strerror(errno);
  if (ftruncate(fd, kContents) != 0) {
    close(fd);
    return strerror(errno);
  }
  dev.contents = fd;
  return NULL;
}

const char *device_open(int64_t memory, int devices) {
  lock();
  const char *why = dev.contents < 0 ? open_contents() : NULL;
  if (!why) {
    dev.memory = memory;
    dev.devices = devices;
  }
  unlock();
  return why;
}

int device_count(void) {
  lock();
  int n = dev.devices;
  unlock();
  return n;
}

int64_t device_memory(void) {
  lock();
  int64_t n = dev.memory;
  unlock();
  return n;
}

void device_free_memory(int device, size_t *available, size_t *total) {
  lock();
  int64_t left = dev.memory - dev.live[device];
  *total = (size_t)dev.memory;
  *available = left > 0 ? (size_t)left : 0;
  unlock();
}

void device_counters(Counters *out) {
  lock();
  *out = dev.counters;
  unlock();
}

void device_restart_peak(void) {
  lock();
  dev.counters.peak = dev.counters.live;
  unlock();
}

// after is the place of the first block that starts behind p. The lock is held here
// and below, up to the functions that take it.
static size_t after(const char *p) {
  size_t low = 0, high = dev.count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (dev.blocks[middle].start <= p)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// find returns the block that holds p, or NULL.
static Block *find(const void *p) {
  size_t i = after(p);
  if (i == 0) return NULL;
  Block *b = &dev.blocks[i - 1];
  return (const char *)p < b->start + b->bytes ? b : NULL;
}

static int add(Block b) {
  if (dev.count == dev.room) {
    size_t room = dev.room ? 2 * dev.room : 256;
    Block *p = realloc(dev.blocks, room * sizeof *p);
    if (!p) return kOutOfMemory;
    dev.blocks = p;
    dev.room = room;
  }
  size_t i = after(b.start);
  memmove(dev.blocks + i + 1, dev.blocks + i, (dev.count - i) * sizeof b);
  dev.blocks[i] = b;
  dev.count++;
  return kSuccess;
}

static void drop(Block *b) {
  size_t i = (size_t)(b - dev.blocks);
  dev.count--;
  memmove(b, b + 1, (dev.count - i) * sizeof *b);
}

// refuse notes an allocation that does not fit the device, or this process.
static int refuse(size_t n, int device, int by_host) {
  dev.counters.refused++;
  dev.counters.refused_asked = n > INT64_MAX ? INT64_MAX : (int64_t)n;
  dev.counters.refused_live = dev.live[device];
  dev.counters.refused_memory = dev.memory;
  dev.counters.refused_by_host = by_host;
  return kOutOfMemory;
}

static int map(size_t n, int kind, int device, void **p) {
  int rights = kind == kDevice ? PROT_NONE : PROT_READ | PROT_WRITE;
  void *at = mmap(NULL, pages(n), rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return kOutOfMemory;
  if (add((Block){at, n, kind, device}) != kSuccess) {
    munmap(at, pages(n));
    return kOutOfMemory;
  }
  *p = at;
  return kSuccess;
}

static int alloc_locked(void **p, size_t n, int device) {
  if (n > INT64_MAX || (int64_t)n > dev.memory - dev.live[device]) return refuse(n, device, 0);
  int error = map(n, kDevice, device, p);
  if (error) return refuse(n, device, 1);
  Counters *c = &dev.counters;
  dev.live[device] += (int64_t)n;
  c->live += (int64_t)n;
  if (c->live > c->peak) c->peak = c->live;
  c->allocations++;
  c->blocks++;
  return kSuccess;
}

int memory_alloc(void **p, size_t n, int device) {
  *p = NULL;
  if (n == 0) return kSuccess;
  lock();
  int error = alloc_locked(p, n, device);
  unlock();
  return error;
}

int memory_alloc_host(void **p, size_t n) {
  *p = NULL;
  if (n == 0) return kSuccess;
  lock();
  int error = n > INT64_MAX ? kOutOfMemory : map(n, kHost, 0, p);
  if (!error) {
    dev.counters.host_live += (int64_t)n;
    dev.counters.host_blocks++;
  }
  unlock();
  return error;
}

// clear makes n bytes of the device read as zeros, and frees the pages that it covers whole.
static int clear(const char *p, size_t n) {
  int how = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
  return fallocate(dev.contents, how, (off_t)(intptr_t)p, (off_t)n) ? kUnknown : kSuccess;
}

static int release(void *p, int kind) {
  lock();
  Block *b = find(p);
  if (!b || b->start != p || b->kind != kind) {
    unlock();
    return kInvalidValue;
  }
  Counters *c = &dev.counters;
  if (kind == kDevice) {
    clear(b->start, b->bytes);
    dev.live[b->device] -= (int64_t)b->bytes;
    c->live -= (int64_t)b->bytes;
    c->releases++;
    c->blocks--;
  } else {
    c->host_live -= (int64_t)b->bytes;
    c->host_blocks--;
  }
  munmap(b->start, pages(b->bytes));
  drop(b);
  unlock();
  return kSuccess;
}

int memory_release(void *p) { return p ? release(p, kDevice) : kSuccess; }
int memory_release_host(void *p) { return p ? release(p, kHost) : kSuccess; }

int memory_kind(const void *p, int *device) {
  lock();
  Block *b = find(p);
  *device = b ? b->device : 0;
  int kind = b ? b->kind : kUnregistered;
  unlock();
  return kind;
}

// Transfers between the host and the file of contents, at most kReal bytes.
static int put(char *to, const char *from, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t k = pwrite(dev.contents, from + done, n - done, (off_t)(intptr_t)(to + done));
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return k < 0 && errno == EFAULT ? kInvalidValue : kUnknown;
    done += (size_t)k;
  }
  return kSuccess;
}

static int get(char *to, const char *from, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t k = pread(dev.contents, to + done, n - done, (off_t)(intptr_t)(from + done));
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) return k < 0 && errno == EFAULT ? kInvalidValue : kUnknown;
    done += (size_t)k;
  }
  return kSuccess;
}

static int all_zero(const char *p, size_t n) { return n == 0 || (p[0] == 0 && memcmp(p, p + 1, n - 1) == 0); }

// within moves n bytes on the device, at most kReal. Zeros take no pages.
static int within(char *to, const char *from, size_t n) {
  char *through = malloc(n);
  if (!through) return kUnknown;
  int error = get(through, from, n);
  if (!error) error = all_zero(through, n) ? clear(to, n) : put(to, through, n);
  free(through);
  return error;
}

// zero_host makes n bytes of the host read as zeros, and gives the pages back
// that it covers whole: what a large transfer to the host brings.
static void zero_host(char *p, size_t n) {
  char *first = (char *)pages((size_t)p), *last = (char *)((size_t)(p + n) & ~(size_t)(kPage - 1));
  if (first >= last || madvise(first, (size_t)(last - first), MADV_DONTNEED) != 0) {
    memset(p, 0, n);
    return;
  }
  memset(p, 0, (size_t)(first - p));
  memset(last, 0, (size_t)(p + n - last));
}

// place says whether n bytes at p are the device's, or -1 where they leave their block.
static int place(const void *p, size_t n) {
  Block *b = find(p);
  if (!b) return kHost;
  if (n > b->bytes - (size_t)((const char *)p - b->start)) return -1;
  return b->kind;
}

static int transfer(char *to, const char *from, size_t n, int to_kind, int from_kind) {
  if (to_kind == kDevice && from_kind == kDevice) return n > kReal ? clear(to, n) : within(to, from, n);
  if (to_kind == kDevice) return n > kReal ? clear(to, n) : put(to, from, n);
  if (from_kind == kHost) {
    memmove(to, from, n);
    return kSuccess;
  }
  if (n <= kReal) return get(to, from, n);
  zero_host(to, n);
  return kSuccess;
}

// A direction in CUDA's numbers is where from, and where to.
static int direction_of(int to_kind, int from_kind) {
  return (to_kind == kDevice ? kHostToDevice : kHostToHost) + (from_kind == kDevice ? kDeviceToHost : kHostToHost);
}

static void count_copy(int direction, size_t n) {
  Counters *c = &dev.counters;
  switch (direction) {
    case kDeviceToHost:
      c->to_host++;
      c->to_host_bytes += n;
      break;
    case kHostToDevice:
      c->to_device++;
      c->to_device_bytes += n;
      break;
    case kDeviceToDevice:
      c->on_device++;
      c->on_device_bytes += n;
      break;
  }
}

int memory_copy_rows(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int direction) {
  if (width == 0 || height == 0) return kSuccess;
  size_t to_span, from_span, bytes;
  if (width > to_pitch || width > from_pitch || direction < kHostToHost || direction > kAnyDirection ||
      __builtin_mul_overflow(to_pitch, height - 1, &to_span) || __builtin_add_overflow(to_span, width, &to_span) ||
      __builtin_mul_overflow(from_pitch, height - 1, &from_span) || __builtin_add_overflow(from_span, width, &from_span) ||
      __builtin_mul_overflow(width, height, &bytes))
    return kInvalidValue;
  lock();
  int to_kind = place(to, to_span), from_kind = place(from, from_span);
  int error = to_kind < 0 || from_kind < 0 ? kInvalidValue : kSuccess;
  int real = direction_of(to_kind, from_kind);
  if (!error && direction != kAnyDirection && direction != real) error = kInvalidValue;
  if (!error) count_copy(real, bytes);
  for (size_t i = 0; i < height && !error; i++)
    error = transfer((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, to_kind, from_kind);
  unlock();
  return error;
}

int memory_copy(void *to, const void *from, size_t n, int direction) {
  return memory_copy_rows(to, n, from, n, n, 1, direction);
}

// fill_device sets at most kReal bytes.
static int fill_device(char *p, int byte, size_t n) {
  char *with = malloc(n);
  if (!with) return kUnknown;
  memset(with, byte, n);
  int error = put(p, with, n);
  free(with);
  return error;
}

int memory_fill(void *p, int byte, size_t n) {
  if (n == 0) return kSuccess;
  lock();
  int kind = place(p, n), error = kSuccess;
  if (kind < 0)
    error = kInvalidValue;
  else if (kind == kHost)
    memset(p, byte, n);
  else
    error = (byte & 0xff) == 0 || n > kReal ? clear(p, n) : fill_device(p, byte, n);
  unlock();
  return error;
}

void count_synchronization(void) {
  lock();
  dev.counters.synchronizations++;
  unlock();
}

void count_kernels(uint64_t n) {
  lock();
  dev.counters.kernels += n;
  unlock();
}

void count_library_call(void) {
  lock();
  dev.counters.library_calls++;
  unlock();
}

void count_copy_to_host(size_t n) {
  lock();
  count_copy(kDeviceToHost, n);
  unlock();
}

static void count_handle(int by) {
  lock();
  dev.counters.handles += by;
  unlock();
}

void *handle_new(size_t n) {
  void *h = calloc(1, n);
  if (h) count_handle(1);
  return h;
}

void handle_free(void *h) {
  if (!h) return;
  free(h);
  count_handle(-1);
}
