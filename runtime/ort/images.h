#pragma once

#include <stdint.h>

/* release_images gives back the pages of the program and its libraries, and returns of
 * how many bytes of addresses. */
int64_t release_images(void);
