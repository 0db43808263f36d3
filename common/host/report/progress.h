/**
 * @file
 * A line on stderr, if that is a terminal, that shows every second how far a long work is.
 */
#ifndef HOST_PROGRESS_H
#define HOST_PROGRESS_H

#include <stddef.h>
#include <stdint.h>

/** Before the work; its line appears after one second. */
void progress_start(void);

/** Of a kernel on the CPU backend. */
void progress_blocks(uint64_t done, uint64_t total);

/** Of the reference. Takes the line away when all rows are done. */
void progress_rows(size_t done, size_t total);

/** Takes the line away if it is there. */
void progress_end(void);

#endif
