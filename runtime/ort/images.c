/*
 * The pages of the program and of its libraries that nobody reads for now are given back
 * to the system: planning and opening a session run through most of both, and a step
 * through little. Only segments that were never writable are given back, so that each of
 * their pages is as in its file, and is there again when it is touched. A library whose
 * text the loader changed is left alone.
 *
 * What is touched again comes back in pieces. Linux maps what its cache holds around the
 * page that is touched: 64 KiB, and from 6.18 on a whole folio of the cache, of up to
 * 2 MiB, but never beyond the mapping. So the segments are divided into many mappings,
 * which the kernel keeps apart by a flag that differs from each to the next; the one used
 * says what a core dump leaves out, where such pages are left out anyway.
 */
#define _GNU_SOURCE
#include "images.h"

#include <link.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

static int text_changed(const struct dl_phdr_info *image) {
	for (int i = 0; i < image->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &image->dlpi_phdr[i];
		if (p->p_type != PT_DYNAMIC) {
			continue;
		}
		for (const ElfW(Dyn) *d = (const ElfW(Dyn) *)(image->dlpi_addr + p->p_vaddr); d->d_tag != DT_NULL; d++) {
			if (d->d_tag == DT_TEXTREL || (d->d_tag == DT_FLAGS && d->d_un.d_val & DF_TEXTREL)) {
				return 1;
			}
		}
	}
	return 0;
}

/* In bytes, a power of two. The 50 MB of the program and ONNX Runtime's library make some
 * 3,000 mappings, of the 65,530 that a process may have. */
static const uintptr_t piece = 16 << 10;

static void divide(uintptr_t from, uintptr_t to) {
	from = (from + piece - 1) & ~(piece - 1);
	while (from + piece <= to && madvise((void *)from, piece, MADV_DONTDUMP) == 0) {
		from += 2 * piece;
	}
}

/* release gives whole pages of an image back, so that none is shared with another segment. */
static int release(struct dl_phdr_info *image, size_t size, void *given) {
	(void)size;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	if (text_changed(image)) {
		return 0;
	}
	for (int i = 0; i < image->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &image->dlpi_phdr[i];
		if (p->p_type != PT_LOAD || p->p_flags & PF_W) {
			continue;
		}
		uintptr_t from = (image->dlpi_addr + p->p_vaddr + page - 1) & ~(page - 1);
		uintptr_t to = (image->dlpi_addr + p->p_vaddr + p->p_filesz) & ~(page - 1);
		if (from < to && madvise((void *)from, to - from, MADV_DONTNEED) == 0) {
			*(int64_t *)given += (int64_t)(to - from);
			divide(from, to);
		}
	}
	return 0;
}

int64_t release_images(void) {
	int64_t given = 0;
	dl_iterate_phdr(release, &given);
	return given;
}
