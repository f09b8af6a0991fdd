#include "counting.h"

#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// OrtAllocator as ONNX Runtime 1.18 and later read it; what came later stays
// out of use because of the version that is claimed.
typedef struct {
  uint32_t version;
  void *(*Alloc)(void *self, size_t n);
  void (*Free)(void *self, void *p);
  const OrtMemoryInfo *(*Info)(const void *self);
  void *(*Reserve)(void *self, size_t n);
  void *later[8];
} AllocatorTable;

enum { kAllocatorVersion = 22, kAlign = kSlabAlign };

// Released blocks of kCacheFrom bytes and more are kept for reuse, oldest
// first in the list, so that a step does not pay for fresh pages each time. All
// counters share them, as sessions that are compared take turns. What is kept and
// what is live together never exceed the largest live sum so far by more than
// 1/kCacheSlack; on a device, by more than itself: giving memory back stops the device,
// and is done in any case where no other is left.
enum { kCacheFrom = 1 << 16, kCacheBlocks = 512, kCacheSlack = 8, kRows = 4096 };

union Header;

// A Slab is the memory of steps whose requests are known beforehand: each has its place,
// so that none lies between two others and keeps them apart. The ranges in use are
// listed by address, with what is known of the blocks, so that these take nothing
// besides their bytes. A request whose place is taken goes elsewhere: a step that does
// not keep to what was known costs memory, and no more.
typedef struct {
  char *base;
  int64_t bytes;    // of address space; of memory on a device
  int64_t touched;  // of memory, from the beginning: as far as blocks have lain
  int64_t live;     // in blocks
  Ranges used;
} Slab;

// A Pool is a kind of memory: the host's, or a device's.
typedef struct Pool {
  pthread_mutex_t mu;  // taken after a counter's own
  int device;          // none: the host
  int counters;
  int64_t live, highest;  // of all counters: now, and at most
  int64_t kept;           // capacity of the blocks below
  int64_t within;         // what live and kept may be together, unless live alone is more; 0: as above
  union Header *cache[kCacheBlocks];
  int cached;
  Slab slab;
} Pool;

enum { kHost = -1, kDevices = 16 };

static Pool host = {.mu = PTHREAD_MUTEX_INITIALIZER, .device = kHost};
static Pool *devices[kDevices];  // made once, under host.mu
static int (*device_select)(int), (*device_malloc)(void **, size_t), (*device_free)(void *);

struct Counter {
  AllocatorTable table;  // first: its address is the allocator's
  pthread_mutex_t mu;
  OrtMemoryInfo *info;
  Pool *pool;
  CounterState s;
  uint64_t next;
  int64_t limit;  // of s.live; 0: none
  Place *places;  // of the requests of a step
  size_t nplaces, place;
  int64_t slab;   // what they need
  size_t placed;  // blocks in the slab
  int64_t elsewhere, most_elsewhere, reached;  // bytes of the other blocks, now and at most since the mark; how far the slab was used
  int unmarked;   // nothing says where a step begins
  int trace, closed;
  CounterEvent *events;
  size_t capacity;
  union Header **blocks;  // of a device's memory, by address; NULL for the host's
};

// What a failing allocation ends in, NULL where the library has no such function.
static void (*throw_bad_alloc)(void);

void counter_throws(void (*function)(void)) { throw_bad_alloc = function; }

// The size and number of a block outside the slab. They are in the line before it, or,
// where it is on a device, in memory of their own, found by the block's address.
typedef union Header {
  struct {
    size_t bytes, capacity;
    uint64_t id;
    void *memory;
    union Header *next;  // in its row of blocks
  } h;
  char line[kAlign];
} Header;

// fresh takes n bytes from the system, or returns NULL.
static Header *fresh(Pool *pool, size_t n) {
  Header *h = NULL;
  if (pool->device == kHost) {
    void *p;
    if (posix_memalign(&p, kAlign, n + sizeof(Header))) return NULL;
    h = p;
    h->h.memory = h + 1;
  } else {
    if (!(h = malloc(sizeof *h))) return NULL;
    if (device_select(pool->device) || device_malloc(&h->h.memory, n)) {
      remat_forget_error();  // kept blocks may make room
      free(h);
      return NULL;
    }
  }
  h->h.capacity = n;
  return h;
}

// discard gives a block back to the system.
static void discard(Pool *pool, Header *h) {
  if (pool->device != kHost) device_free(h->h.memory);
  free(h);
}

// record is called with the lock held.
static void record(Counter *c, int64_t bytes, uint64_t id) {
  if (!c->trace || c->s.lost) return;
  if (c->s.events == c->capacity) {
    size_t n = c->capacity ? 2 * c->capacity : 4096;
    CounterEvent *p = realloc(c->events, n * sizeof *p);
    if (!p) {
      c->s.lost = 1;
      return;
    }
    c->events = p;
    c->capacity = n;
  }
  c->events[c->s.events++] = (CounterEvent){bytes, id};
}

// drop releases kept block i for good. The pool's lock is held here and below.
static void drop(Pool *pool, int i) {
  pool->kept -= (int64_t)pool->cache[i]->h.capacity;
  discard(pool, pool->cache[i]);
  pool->cached--;
  memmove(pool->cache + i, pool->cache + i + 1, (size_t)(pool->cached - i) * sizeof *pool->cache);
}

static void drop_all(Pool *pool) {
  while (pool->cached > 0) drop(pool, pool->cached - 1);
}

// shrink drops the oldest blocks until the rest is within bounds.
static void shrink(Pool *pool, int64_t live) {
  int64_t bound = (live > pool->highest ? live : pool->highest);
  bound += pool->device == kHost ? bound / kCacheSlack : bound;
  if (pool->within && bound > pool->within - pool->slab.touched) bound = pool->within - pool->slab.touched;
  while (pool->cached > 0 && live + pool->kept > bound) drop(pool, 0);
}

// least_kept is the size from which blocks are kept: taking memory of a device, and
// giving it back, stops the device whatever the size.
static size_t least_kept(const Pool *pool) { return pool->device == kHost ? kCacheFrom : 1; }

// reuse takes the smallest kept block that holds n bytes without wasting a
// quarter of itself, a thirty-second where memory is bounded, or NULL.
static Header *reuse(Pool *pool, size_t n) {
  int best = -1;
  if (n < least_kept(pool)) return NULL;
  for (int i = pool->cached - 1; i >= 0; i--) {
    size_t have = pool->cache[i]->h.capacity;
    if (have < n || have - n > have / (pool->within ? 32 : 4)) continue;
    if (best < 0 || have < pool->cache[best]->h.capacity) best = i;
    if (have == n) break;
  }
  if (best < 0) return NULL;
  Header *h = pool->cache[best];
  pool->kept -= (int64_t)h->h.capacity;
  pool->cached--;
  memmove(pool->cache + best, pool->cache + best + 1, (size_t)(pool->cached - best) * sizeof *pool->cache);
  return h;
}

// kAhead is how many known requests may be left out at once.
enum { kAhead = 16 };

enum { kOutside = -1, kUnknown = -2 };

// ahead finds the next request of a size among those that are known, and returns its place.
static int64_t ahead(Counter *c, size_t from, int64_t n) {
  for (size_t i = from; i < c->nplaces && i < from + kAhead; i++) {
    if (c->places[i].bytes != n) continue;
    c->place = i + 1;
    return c->places[i].offset < 0 ? kOutside : c->places[i].offset;
  }
  return kUnknown;
}

static int64_t aligned(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// settle returns the block at a place of the slab, or NULL where the place is taken.
static void *settle(Counter *c, int64_t from, size_t n, uint64_t id) {
  Slab *slab = &c->pool->slab;
  int64_t to = from + (int64_t)n;
  pthread_mutex_lock(&c->pool->mu);
  void *p = NULL;
  if (to <= slab->bytes && ranges_take(&slab->used, from, to, id)) {
    slab->live += to - from;
    if (to > slab->touched) slab->touched = to;
    p = slab->base + from;
  }
  pthread_mutex_unlock(&c->pool->mu);
  if (!p) return NULL;
  c->placed++;
  to = aligned(to, c->pool->device == kHost ? kSlabAlign : kDeviceAlign);
  if (to > c->reached) c->reached = to;
  return p;
}

// leave frees the place of a block, and reports whether it had one.
static int leave(Counter *c, void *p, Range *given) {
  Slab *slab = &c->pool->slab;
  if (c->placed == 0) return 0;
  pthread_mutex_lock(&c->pool->mu);
  int in = slab->base && (char *)p >= slab->base && (char *)p < slab->base + slab->bytes;
  if (in) {
    *given = ranges_give(&slab->used, (char *)p - slab->base);
    slab->live -= given->to - given->from;
  }
  pthread_mutex_unlock(&c->pool->mu);
  c->placed -= (size_t)in;
  return in;
}

// unmap gives a slab up in which nothing lies.
static void unmap(Pool *pool) {
  Slab *slab = &pool->slab;
  if (slab->base && pool->device == kHost) munmap(slab->base, (size_t)slab->bytes);
  else if (slab->base) device_free(slab->base);
  free(slab->used.list);
  memset(slab, 0, sizeof *slab);
}

// map takes memory for a slab, or returns NULL.
static char *map(Pool *pool, size_t bytes) {
  if (pool->device == kHost) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
  }
  drop_all(pool);
  void *p = NULL;
  if (device_select(pool->device) || device_malloc(&p, bytes)) {
    remat_forget_error();
    return NULL;
  }
  return p;
}

// room makes the slab as large as a step needs it, and reports whether it could: it
// stays as it is while a block lies in it.
static int room(Pool *pool, int64_t bytes) {
  Slab *slab = &pool->slab;
  pthread_mutex_lock(&pool->mu);
  if (slab->bytes < bytes && slab->used.n == 0) {
    unmap(pool);
    if ((slab->base = map(pool, (size_t)bytes))) slab->bytes = bytes;
  }
  int enough = slab->bytes >= bytes;
  pthread_mutex_unlock(&pool->mu);
  return enough;
}

// known is the place of the next request. Where steps are not marked, the next one begins
// once all requests were made, and where one ended before that, once its blocks are gone.
static int64_t known(Counter *c, int64_t n) {
  int next = c->place < c->nplaces && c->places[c->place].bytes == n;
  if (c->unmarked && !next && (c->place == c->nplaces || c->placed == 0) && room(c->pool, c->slab)) {
    int64_t place = ahead(c, 0, n);
    if (place != kUnknown) return place;
  }
  return ahead(c, c->place, n);
}

// take returns a block of n bytes, kept or fresh, or NULL.
static Header *take(Pool *pool, size_t n) {
  pthread_mutex_lock(&pool->mu);
  Header *h = reuse(pool, n);
  if (!h) {
    shrink(pool, pool->live + (int64_t)n);
    h = fresh(pool, n);
    if (!h && pool->cached > 0) {
      drop_all(pool);
      h = fresh(pool, n);
    }
  }
  if (h) {
    pool->live += (int64_t)n;
    if (pool->live > pool->highest) pool->highest = pool->live;
  }
  pthread_mutex_unlock(&pool->mu);
  return h;
}

// give keeps a block that is released, or gives it back.
static void give(Pool *pool, Header *h) {
  pthread_mutex_lock(&pool->mu);
  pool->live -= (int64_t)h->h.bytes;
  if (h->h.capacity < least_kept(pool)) {
    discard(pool, h);
  } else {
    if (pool->cached == kCacheBlocks) drop(pool, 0);
    pool->cache[pool->cached++] = h;
    pool->kept += (int64_t)h->h.capacity;
    shrink(pool, pool->live);
  }
  pthread_mutex_unlock(&pool->mu);
}

static void drain(Pool *pool) {
  pthread_mutex_lock(&pool->mu);
  drop_all(pool);
  if (pool->slab.used.n == 0 && pool->device != kHost) {
    unmap(pool);
  } else if (pool->slab.used.n == 0 && pool->slab.touched > 0) {
    madvise(pool->slab.base, (size_t)pool->slab.bytes, MADV_DONTNEED);
    pool->slab.touched = 0;
  }
  pool->highest = pool->live;
  pthread_mutex_unlock(&pool->mu);
}

// counter_drain frees all that is kept, and forgets what was live before.
void counter_drain(void) {
  drain(&host);
  for (int i = 0; i < kDevices; i++)
    if (devices[i]) drain(devices[i]);
}

// destroy frees a counter, and with the last one all that is kept.
static void destroy(Counter *c) {
  pthread_mutex_lock(&c->pool->mu);
  if (--c->pool->counters == 0) {
    drop_all(c->pool);
    unmap(c->pool);
    c->pool->highest = 0;
  }
  pthread_mutex_unlock(&c->pool->mu);
  pthread_mutex_destroy(&c->mu);
  ortReleaseMemoryInfo(c->info);
  free(c->events);
  free(c->blocks);
  free(c->places);
  free(c);
}

// row is where the block at an address is listed.
static Header **row(Counter *c, const void *p) { return &c->blocks[((uintptr_t)p >> 8) % kRows]; }

// header finds the block at an address, and takes it off its list.
static Header *header(Counter *c, void *p) {
  if (!c->blocks) return (Header *)p - 1;
  for (Header **at = row(c, p); *at; at = &(*at)->h.next) {
    Header *h = *at;
    if (h->h.memory != p) continue;
    *at = h->h.next;
    return h;
  }
  return NULL;
}

// outside returns a block that has no place in the slab, or NULL.
static void *outside(Counter *c, size_t n, uint64_t id) {
  Header *h = take(c->pool, n);
  if (!h) return NULL;
  h->h.bytes = n;
  h->h.id = id;
  if (c->blocks) {
    h->h.next = *row(c, h->h.memory);
    *row(c, h->h.memory) = h;
  }
  c->elsewhere += (int64_t)n;
  if (c->elsewhere > c->most_elsewhere) c->most_elsewhere = c->elsewhere;
  return h->h.memory;
}

static void *count_alloc(void *self, size_t n) {
  Counter *c = self;
  if (n == 0) return NULL;
  pthread_mutex_lock(&c->mu);
  int fits = n <= SIZE_MAX / 2 && (c->limit == 0 || c->s.live + (int64_t)n <= c->limit);
  int64_t place = c->places && fits ? known(c, (int64_t)n) : kOutside;
  void *p = place >= 0 ? settle(c, place, n, c->next + 1) : NULL;
  if (!p && fits) {
    p = outside(c, n, c->next + 1);
    if (place != kOutside) c->s.astray += n;
  }
  if (!p) {
    if (c->s.refused == 0) {
      c->s.refused = (uint64_t)(c->s.live - c->s.base) + n;
      c->s.asked = n;
    }
    pthread_mutex_unlock(&c->mu);
    // ONNX Runtime writes to a null pointer, but catches the exception that its
    // own allocator throws.
    if (throw_bad_alloc) throw_bad_alloc();
    return NULL;
  }
  c->next++;
  c->s.live += (int64_t)n;
  if (c->s.live > c->s.peak) c->s.peak = c->s.live;
  c->s.allocations++;
  c->s.blocks++;
  record(c, (int64_t)n, c->next);
  pthread_mutex_unlock(&c->mu);
  return p;
}

static void count_free(void *self, void *p) {
  if (!p) return;
  Counter *c = self;
  pthread_mutex_lock(&c->mu);
  Range was = {0};
  if (!leave(c, p, &was)) {
    Header *h = header(c, p);
    was = (Range){0, (int64_t)h->h.bytes, h->h.id};
    c->elsewhere -= was.to;
    give(c->pool, h);
  }
  const int64_t bytes = was.to - was.from;
  c->s.live -= bytes;
  c->s.blocks--;
  record(c, ~bytes, was.id);
  int last = c->closed && c->s.blocks == 0;
  pthread_mutex_unlock(&c->mu);
  if (last) destroy(c);
}

static const OrtMemoryInfo *count_info(const void *self) { return ((const Counter *)self)->info; }

// bind_device finds the functions of CUDA's runtime, which the provider has loaded;
// NULL, or the reason why not.
static const char *bind_device(void) {
  static const char *const runtimes[] = {"libcudart.so.13", "libcudart.so.12"};
  if (device_free) return NULL;
  void *handle = NULL;
  for (size_t i = 0; !handle && i < sizeof runtimes / sizeof runtimes[0]; i++)
    handle = dlopen(runtimes[i], RTLD_LAZY | RTLD_NOLOAD);
  if (!handle) return "CUDA's runtime is not loaded";
  device_select = (int (*)(int))dlsym(handle, "cudaSetDevice");
  device_malloc = (int (*)(void **, size_t))dlsym(handle, "cudaMalloc");
  int (*release)(void *) = (int (*)(void *))dlsym(handle, "cudaFree");
  if (!device_select || !device_malloc || !release) return "CUDA's runtime lacks cudaMalloc";
  device_free = release;
  return NULL;
}

// pool_of is the pool of a device's memory, or NULL with the reason.
static Pool *pool_of(int device, const char **why) {
  if (device == kHost) return &host;
  *why = device < 0 || device >= kDevices ? "no such device" : NULL;
  pthread_mutex_lock(&host.mu);
  if (!*why) *why = bind_device();
  if (!*why && !devices[device]) {
    Pool *p = calloc(1, sizeof *p);
    if (p) {
      pthread_mutex_init(&p->mu, NULL);
      p->device = device;
    }
    devices[device] = p;
  }
  pthread_mutex_unlock(&host.mu);
  return *why ? NULL : devices[device];
}

Counter *counter_new(OrtMemoryInfo *info, int device, const char **why) {
  *why = NULL;
  Pool *pool = pool_of(device, why);
  Counter *c = pool ? calloc(1, sizeof *c) : NULL;
  if (!c) return NULL;
  if (device != kHost && !(c->blocks = calloc(kRows, sizeof *c->blocks))) {
    free(c);
    return NULL;
  }
  c->table.version = kAllocatorVersion;
  c->table.Alloc = c->table.Reserve = count_alloc;
  c->table.Free = count_free;
  c->table.Info = count_info;
  c->info = info;
  c->pool = pool;
  pthread_mutex_init(&c->mu, NULL);
  pthread_mutex_lock(&pool->mu);
  pool->counters++;
  pthread_mutex_unlock(&pool->mu);
  return c;
}

OrtAllocator *counter_allocator(Counter *c) { return (OrtAllocator *)c; }
OrtMemoryInfo *counter_info(Counter *c) { return c->info; }

// counter_mark starts a step: the peak restarts from what is live, and the
// trace from nothing.
void counter_mark(Counter *c, int trace) {
  pthread_mutex_lock(&c->mu);
  c->s.base = c->s.peak = c->s.live;
  c->s.allocations = 0;
  c->s.events = 0;
  c->s.lost = 0;
  c->s.refused = c->s.asked = c->s.astray = 0;
  c->most_elsewhere = c->elsewhere;
  c->reached = 0;
  c->trace = trace;
  c->place = c->places && room(c->pool, c->slab) ? 0 : c->nplaces;
  pthread_mutex_unlock(&c->mu);
}

int counter_place(Counter *c, const Place *places, size_t n, int64_t slab) {
  Place *copy = n ? malloc(n * sizeof *copy) : NULL;
  if (n && !copy) return 0;
  if (n) memcpy(copy, places, n * sizeof *copy);
  pthread_mutex_lock(&c->mu);
  free(c->places);
  c->places = copy;
  c->nplaces = c->place = n;
  c->slab = slab;
  pthread_mutex_unlock(&c->mu);
  return 1;
}

void counter_unmarked(Counter *c) { c->unmarked = 1; }

// counter_alone has malloc map blocks worth keeping each by itself, so that one that is
// given back is the system's again.
void counter_alone(void) { mallopt(M_MMAP_THRESHOLD, kCacheFrom); }

// counter_limit bounds what may be live; 0: nothing bounds it.
void counter_limit(Counter *c, int64_t bytes) {
  pthread_mutex_lock(&c->mu);
  c->limit = bytes;
  pthread_mutex_unlock(&c->mu);
}

// counter_within bounds what the host's counters take together, with what they keep
// for reuse; 0: nothing bounds it.
void counter_within(int64_t bytes) {
  pthread_mutex_lock(&host.mu);
  host.within = bytes;
  if (bytes) counter_alone();
  shrink(&host, host.live);
  pthread_mutex_unlock(&host.mu);
}

// counter_kept is what is kept for reuse of the host's memory, of all counters.
int64_t counter_kept(void) {
  pthread_mutex_lock(&host.mu);
  int64_t kept = host.kept + host.slab.touched - host.slab.live;
  pthread_mutex_unlock(&host.mu);
  return kept;
}

void counter_state(Counter *c, CounterState *out) {
  pthread_mutex_lock(&c->mu);
  *out = c->s;
  out->reserved = c->reached + c->most_elsewhere;
  pthread_mutex_unlock(&c->mu);
}

size_t counter_events(Counter *c, CounterEvent *out, size_t n) {
  pthread_mutex_lock(&c->mu);
  if (n > c->s.events) n = c->s.events;
  if (n) memcpy(out, c->events, n * sizeof *out);
  pthread_mutex_unlock(&c->mu);
  return n;
}

// counter_close gives the counter up: it goes when its last block does, since
// values that outlive their session release their memory through it.
void counter_close(Counter *c) {
  pthread_mutex_lock(&c->mu);
  c->closed = 1;
  int last = c->s.blocks == 0;
  pthread_mutex_unlock(&c->mu);
  if (last) destroy(c);
}
