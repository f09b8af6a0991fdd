// A slab is a region in which each request of a step has its place. Here is what needs no
// memory of it: which ranges are in use, and the table that a file carries of a step's
// places, as a text:
//
//	version size align requests graph table
//
// in decimal, the graph's hash as it is, the table in base64 without padding. It lists the
// requests in order, in variable-length integers (seven bits a byte, the low ones first).
// A request is the number, from 1, of a pair that came before, or 0 with a new pair: its
// bytes, and its place, 0 for outside, else 1 + offset / align. What lies in the slab has
// one number more: before which request it is released, counted from itself, 0 for the
// step's end.
//
// A table is read as a step: places are taken and given back in order, so that one that
// another block has is seen before anything runs.
#include "slab.h"

#include <stdlib.h>
#include <string.h>

// after is how many of the ranges begin at or before a place.
static size_t after(const Ranges *r, int64_t from) {
  size_t low = 0, high = r->n;
  while (low < high) {
    size_t mid = (low + high) / 2;
    if (r->list[mid].from <= from) low = mid + 1;
    else high = mid;
  }
  return low;
}

int ranges_take(Ranges *r, int64_t from, int64_t to, uint64_t id) {
  size_t at = after(r, from);
  if ((at > 0 && r->list[at - 1].to > from) || (at < r->n && r->list[at].from < to)) return 0;
  if (r->n == r->capacity) {
    size_t more = r->capacity ? 2 * r->capacity : 256;
    Range *p = realloc(r->list, more * sizeof *p);
    if (!p) return 0;
    r->list = p;
    r->capacity = more;
  }
  memmove(r->list + at + 1, r->list + at, (r->n - at) * sizeof *r->list);
  r->list[at] = (Range){from, to, id};
  r->n++;
  return 1;
}

Range ranges_give(Ranges *r, int64_t from) {
  size_t at = after(r, from) - 1;
  Range given = r->list[at];
  r->n--;
  memmove(r->list + at, r->list + at + 1, (r->n - at) * sizeof *r->list);
  return given;
}

// A Reader is in a text. What it cannot read is marked bad, and reads as 0 from then on.
typedef struct {
  const char *p, *end;
  uint32_t bits;  // of base64, the last count of them not yet given
  int count, bad;
} Reader;

// decimal reads a number of at most 18 digits and the blank behind it.
static int64_t decimal(Reader *r) {
  int64_t v = 0;
  int digits = 0;
  for (; !r->bad && r->p < r->end && *r->p >= '0' && *r->p <= '9'; r->p++) {
    if (++digits > 18) r->bad = 1;
    else v = 10 * v + (*r->p - '0');
  }
  if (r->bad || digits == 0 || r->p == r->end || *r->p++ != ' ') r->bad = 1;
  return r->bad ? 0 : v;
}

static int sextet(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

static uint32_t byte(Reader *r) {
  while (!r->bad && r->count < 8) {
    int v = r->p < r->end ? sextet(*r->p++) : -1;
    if (v < 0) r->bad = 1;
    else r->bits = r->bits << 6 | (uint32_t)v, r->count += 6;
  }
  if (r->bad) return 0;
  r->count -= 8;
  return r->bits >> r->count & 0xff;
}

// number reads an integer below 1 << 62.
static int64_t number(Reader *r) {
  uint64_t v = 0;
  for (int shift = 0; shift < 63; shift += 7) {
    uint64_t b = byte(r);
    v |= (b & 0x7f) << shift;
    if (b & 0x80) continue;
    if (v >> 62) break;
    return (int64_t)v;
  }
  r->bad = 1;
  return 0;
}

// at_end: all of the text is read, and nothing was left in its last character.
static int at_end(const Reader *r) { return r->p == r->end && r->count < 6 && !(r->bits & ((1u << r->count) - 1)); }

static int64_t rounded(int64_t bytes) { return (bytes + kSlabAlign - 1) / kSlabAlign * kSlabAlign; }

// A Walk goes through a table as a step goes through its requests.
typedef struct {
  Ranges used;
  Place *pairs;  // that came before
  int64_t npairs;
  uint32_t *first, *next;  // the requests, from 1, that are released before one: lists
  int64_t live, top;
} Walk;

// request reads the next one, and returns why it cannot be.
static const char *request(Reader *r, Walk *w, SlabTable *t, int64_t i) {
  for (uint32_t k = w->first[i]; k; k = w->next[k - 1]) {
    ranges_give(&w->used, t->places[k - 1].offset);
    w->live -= rounded(t->places[k - 1].bytes);
  }
  int64_t pair = number(r);
  if (r->bad) return "is cut off, or is not written as a number";
  if (pair > w->npairs) return "is like one that does not come before it";
  if (pair == 0) {
    int64_t bytes = number(r), place = number(r);
    if (r->bad) return "is cut off, or is not written as a number";
    if (bytes == 0) return "has no bytes";
    if (place && (bytes > t->size || place - 1 > t->size / kSlabAlign || (place - 1) * kSlabAlign > t->size - rounded(bytes)))
      return "lies beyond the slab";
    pair = ++w->npairs;
    w->pairs[pair - 1] = (Place){bytes, place ? (place - 1) * kSlabAlign : -1};
  }
  const Place p = t->places[i] = w->pairs[pair - 1];
  if (p.offset < 0) return NULL;
  int64_t ends = number(r);
  if (r->bad) return "is cut off, or is not written as a number";
  if (ends >= (int64_t)t->n - i) return "is released after the step's last request";
  if (!ranges_take(&w->used, p.offset, p.offset + p.bytes, 0)) return "lies over another that lives meanwhile";
  if (ends) {
    w->next[i] = w->first[i + ends];
    w->first[i + ends] = (uint32_t)i + 1;
  }
  w->live += rounded(p.bytes);
  if (w->live > t->peak) t->peak = w->live;
  if (p.offset + rounded(p.bytes) > w->top) w->top = p.offset + rounded(p.bytes);
  return NULL;
}

// header reads what comes before the table.
static const char *header(Reader *r, const char *text, SlabTable *t) {
  if (decimal(r) != 2 || r->bad) return "it is of another version";
  t->size = decimal(r);
  int64_t align = decimal(r), n = decimal(r);
  if (r->bad) return "its head is no list of numbers";
  if (align != kSlabAlign) return "its places are multiples of another number";
  t->graph = (size_t)(r->p - text);
  while (r->p < r->end && *r->p != ' ') r->p++;
  t->graph_length = (size_t)(r->p - text) - t->graph;
  if (r->p == r->end || t->graph_length == 0) return "it names no graph";
  r->p++;
  if (n < 1 || n > kSlabRequests || n > r->end - r->p) return "it cannot have that many requests";
  t->n = (size_t)n;
  return NULL;
}

const char *slab_read(const char *text, size_t length, SlabTable *out, int64_t *at) {
  Reader r = {.p = text, .end = text + length};
  SlabTable t = {0};
  *at = -1;
  const char *why = header(&r, text, &t);
  if (why) return why;
  Walk w = {.pairs = malloc(t.n * sizeof *w.pairs), .first = calloc(t.n, sizeof *w.first), .next = calloc(t.n, sizeof *w.next)};
  t.places = malloc(t.n * sizeof *t.places);
  if (!w.pairs || !w.first || !w.next || !t.places) why = "there is no memory for it";
  for (size_t i = 0; !why && i < t.n; i++)
    if ((why = request(&r, &w, &t, (int64_t)i))) *at = (int64_t)i;
  if (!why && !at_end(&r)) why = "it goes on after its last request";
  if (!why && w.top != t.size) why = "its slab is larger than what lies in it";
  free(w.pairs);
  free(w.first);
  free(w.next);
  free(w.used.list);
  if (why) {
    free(t.places);
    return why;
  }
  *out = t;
  return NULL;
}
