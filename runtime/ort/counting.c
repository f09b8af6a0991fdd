#include "counting.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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

enum { kAllocatorVersion = 22, kAlign = 64 };

// Released blocks of kCacheFrom bytes and more are kept for reuse, oldest
// first in the list, so that a step does not pay for fresh pages each time. All
// counters share them, as sessions that are compared take turns. What is kept and
// what is live together never exceed the largest live sum so far by more than
// 1/kCacheSlack.
enum { kCacheFrom = 1 << 16, kCacheBlocks = 512, kCacheSlack = 8 };

union Header;

static struct {
  pthread_mutex_t mu;  // taken after a counter's own
  int counters;
  int64_t live, highest;  // of all counters: now, and at most
  int64_t kept;           // capacity of the blocks below
  union Header *cache[kCacheBlocks];
  int cached;
} pool = {.mu = PTHREAD_MUTEX_INITIALIZER};

struct Counter {
  AllocatorTable table;  // first: its address is the allocator's
  pthread_mutex_t mu;
  OrtMemoryInfo *info;
  CounterState s;
  uint64_t next;
  int64_t limit;  // of s.live; 0: none
  int trace, closed;
  CounterEvent *events;
  size_t capacity;
};

// What a failing allocation ends in, NULL where the library has no such function.
static void (*throw_bad_alloc)(void);

void counter_throws(void (*function)(void)) { throw_bad_alloc = function; }

// Every block is preceded by one line that holds its size and number.
typedef union Header {
  struct {
    size_t bytes, capacity;
    uint64_t id;
  } h;
  char line[kAlign];
} Header;

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
static void drop(int i) {
  pool.kept -= (int64_t)pool.cache[i]->h.capacity;
  free(pool.cache[i]);
  pool.cached--;
  memmove(pool.cache + i, pool.cache + i + 1, (size_t)(pool.cached - i) * sizeof *pool.cache);
}

// shrink drops the oldest blocks until the rest is within bounds.
static void shrink(int64_t live) {
  int64_t bound = (live > pool.highest ? live : pool.highest);
  bound += bound / kCacheSlack;
  while (pool.cached > 0 && live + pool.kept > bound) drop(0);
}

// reuse takes the smallest kept block that holds n bytes without wasting a
// quarter of itself, or NULL.
static Header *reuse(size_t n) {
  int best = -1;
  if (n < kCacheFrom) return NULL;
  for (int i = pool.cached - 1; i >= 0; i--) {
    size_t have = pool.cache[i]->h.capacity;
    if (have < n || have - n > have / 4) continue;
    if (best < 0 || have < pool.cache[best]->h.capacity) best = i;
    if (have == n) break;
  }
  if (best < 0) return NULL;
  Header *h = pool.cache[best];
  pool.kept -= (int64_t)h->h.capacity;
  pool.cached--;
  memmove(pool.cache + best, pool.cache + best + 1, (size_t)(pool.cached - best) * sizeof *pool.cache);
  return h;
}

// take returns a block of n bytes, kept or fresh, or NULL.
static Header *take(size_t n) {
  pthread_mutex_lock(&pool.mu);
  Header *h = reuse(n);
  if (!h) {
    void *p;
    shrink(pool.live + (int64_t)n);
    int failed = posix_memalign(&p, kAlign, n + sizeof(Header));
    if (failed && pool.cached > 0) {
      while (pool.cached > 0) drop(pool.cached - 1);
      failed = posix_memalign(&p, kAlign, n + sizeof(Header));
    }
    if (!failed) {
      h = p;
      h->h.capacity = n;
    }
  }
  if (h) {
    pool.live += (int64_t)n;
    if (pool.live > pool.highest) pool.highest = pool.live;
  }
  pthread_mutex_unlock(&pool.mu);
  return h;
}

// give keeps a block that is released, or frees it.
static void give(Header *h) {
  pthread_mutex_lock(&pool.mu);
  pool.live -= (int64_t)h->h.bytes;
  if (h->h.capacity < kCacheFrom) {
    free(h);
  } else {
    if (pool.cached == kCacheBlocks) drop(0);
    pool.cache[pool.cached++] = h;
    pool.kept += (int64_t)h->h.capacity;
    shrink(pool.live);
  }
  pthread_mutex_unlock(&pool.mu);
}

// counter_drain frees all that is kept, and forgets what was live before.
void counter_drain(void) {
  pthread_mutex_lock(&pool.mu);
  while (pool.cached > 0) drop(pool.cached - 1);
  pool.highest = pool.live;
  pthread_mutex_unlock(&pool.mu);
}

// destroy frees a counter, and with the last one all that is kept.
static void destroy(Counter *c) {
  pthread_mutex_lock(&pool.mu);
  if (--pool.counters == 0) {
    while (pool.cached > 0) drop(pool.cached - 1);
    pool.highest = 0;
  }
  pthread_mutex_unlock(&pool.mu);
  pthread_mutex_destroy(&c->mu);
  ortReleaseMemoryInfo(c->info);
  free(c->events);
  free(c);
}

static void *count_alloc(void *self, size_t n) {
  Counter *c = self;
  if (n == 0) return NULL;
  pthread_mutex_lock(&c->mu);
  int fits = n <= SIZE_MAX / 2 && (c->limit == 0 || c->s.live + (int64_t)n <= c->limit);
  Header *h = fits ? take(n) : NULL;
  if (!h) {
    if (c->s.refused == 0) c->s.refused = (uint64_t)(c->s.live - c->s.base) + n;
    pthread_mutex_unlock(&c->mu);
    // ONNX Runtime writes to a null pointer, but catches the exception that its
    // own allocator throws.
    if (throw_bad_alloc) throw_bad_alloc();
    return NULL;
  }
  h->h.bytes = n;
  h->h.id = ++c->next;
  c->s.live += (int64_t)n;
  if (c->s.live > c->s.peak) c->s.peak = c->s.live;
  c->s.allocations++;
  c->s.blocks++;
  record(c, (int64_t)n, h->h.id);
  pthread_mutex_unlock(&c->mu);
  return h + 1;
}

static void count_free(void *self, void *p) {
  if (!p) return;
  Counter *c = self;
  Header *h = (Header *)p - 1;
  pthread_mutex_lock(&c->mu);
  c->s.live -= (int64_t)h->h.bytes;
  c->s.blocks--;
  record(c, ~(int64_t)h->h.bytes, h->h.id);
  give(h);
  int last = c->closed && c->s.blocks == 0;
  pthread_mutex_unlock(&c->mu);
  if (last) destroy(c);
}

static const OrtMemoryInfo *count_info(const void *self) { return ((const Counter *)self)->info; }

Counter *counter_new(OrtMemoryInfo *info) {
  Counter *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->table.version = kAllocatorVersion;
  c->table.Alloc = c->table.Reserve = count_alloc;
  c->table.Free = count_free;
  c->table.Info = count_info;
  c->info = info;
  pthread_mutex_init(&c->mu, NULL);
  pthread_mutex_lock(&pool.mu);
  pool.counters++;
  pthread_mutex_unlock(&pool.mu);
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
  c->s.refused = 0;
  c->trace = trace;
  pthread_mutex_unlock(&c->mu);
}

// counter_limit bounds what may be live; 0: nothing bounds it.
void counter_limit(Counter *c, int64_t bytes) {
  pthread_mutex_lock(&c->mu);
  c->limit = bytes;
  pthread_mutex_unlock(&c->mu);
}

// counter_kept is what is kept for reuse, of all counters.
int64_t counter_kept(void) {
  pthread_mutex_lock(&pool.mu);
  int64_t kept = pool.kept;
  pthread_mutex_unlock(&pool.mu);
  return kept;
}

void counter_state(Counter *c, CounterState *out) {
  pthread_mutex_lock(&c->mu);
  *out = c->s;
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
