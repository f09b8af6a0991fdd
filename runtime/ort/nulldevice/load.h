//go:build linux && amd64

#ifndef REMAT_NULLDEVICE_LOAD_H
#define REMAT_NULLDEVICE_LOAD_H

// loaded_from is the path of the library of that name in this process, NULL where there
// is none.
const char *loaded_from(const char *name);
// load takes a library in for good, its symbols open to all that are loaded later. Returns
// NULL, or what went wrong.
const char *load(const char *path);
// look_up finds a symbol of a library that is loaded, NULL where there is none.
void *look_up(const char *soname, const char *name, const char *version);

#endif
