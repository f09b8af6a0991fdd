// A slab's ranges in use, and the table of places that a file carries. See slab.c.
#ifndef REMAT_ORT_SLAB_H
#define REMAT_ORT_SLAB_H

#include <stddef.h>
#include <stdint.h>

// What places are multiples of, on the host and on a device, and the most requests that a
// table lists.
enum { kSlabAlign = 64, kDeviceAlign = 256, kSlabRequests = 1 << 16 };

// A Place is where the next request is to lie: its size, and its offset in the slab,
// -1 for outside.
typedef struct {
  int64_t bytes, offset;
} Place;

// A Range of a slab that a block lies in, and the block's number.
typedef struct {
  int64_t from, to;
  uint64_t id;
} Range;

// Ranges in use, by address.
typedef struct {
  Range *list;
  size_t n, capacity;
} Ranges;

// ranges_take marks a range as used, and returns 0 where one in use overlaps it, or
// there is no memory to note it.
int ranges_take(Ranges *r, int64_t from, int64_t to, uint64_t id);
// ranges_give ends the use of the range that begins there, and returns it.
Range ranges_give(Ranges *r, int64_t from);

// A SlabTable is what a file says of the places of its step.
typedef struct {
  int64_t size, peak;  // of the slab, and the most that lies in it at once
  Place *places;       // the caller's to free
  size_t n;
  size_t graph, graph_length;  // a hash of the graph that it is of: where in the text
} SlabTable;

// slab_read reads a table from a text that may say anything. It returns NULL, or why
// not, then *at is the request, -1 for none, and out has nothing to be freed.
const char *slab_read(const char *text, size_t length, SlabTable *out, int64_t *at);

#endif
