/**
 * @file
 * What the files of explorer_data share: they print the data of the explorers as JavaScript. All of
 * it comes from executing device code on the CPU backend, so that the explorers cannot disagree
 * with the kernels.
 */
#ifndef EXPLORER_DATA_H
#define EXPLORER_DATA_H

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#include "simt/lab/lab.h"

constexpr int LANES = 32;
constexpr int TOKENS = 128;  // queries and keys: a whole tile in every step

/** Prints the message and ends the program. */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/** Ends the program if there was an error. */
void check(cudaError_t error);

/** Allocates memory of the device that is never freed, and copies `content` to it, if any. */
void *device_memory(size_t bytes, const void *content);

/** Prints "name": [list]. */
void print_integers(const char *name, const int *list, int count);

/** fragments.cu: FRAGMENTS, the element that each register holds. */
void print_fragments();

/** wgmma.cu: those of FRAGMENTS that belong to wgmma. */
void print_wgmma_fragments();

/** banks.cu: BANKS, the accesses of the steps to their tiles. */
void print_banks();

/** shares.cu: SHARES, the constants that decide who has which keys in decode steps. */
void print_shares();

/** shares.cu: who has which keys of the problem of these numbers, as the functions and the kernel
 * of the steps say. */
void print_schedule(int count, char **words);

/** panels.cu: the same as place_in() for panels. */
extern "C" uint32_t place_in_panels(int panel_columns, int rows, int row, int at);

/* --- access.cu: accesses to tiles, in any layout ---------------------------------------------- */

/** Layouts of a tile in shared memory: rows of 2 * columns bytes, rows of SMEM_STRIDE elements, the
 * swizzle of step 06, and swizzled panels of 64 or 32 columns, as tensor copies make them. */
enum Layout { UNPADDED, PADDED, SWIZZLED, PANELS_64, PANELS_32, LAYOUTS };

/** A tile of this size in one of the layouts. */
struct Shape {
  int columns, rows;
  Layout layout;
};

/** Can a tile with so many columns have this layout? */
bool exists(int columns, Layout layout);

/** The byte in a tile at which byte `at` of a row is. */
uint32_t place_in(const Shape &shape, int row, int at);

/** Bytes from row to row. */
int row_bytes(int columns, Layout layout);

/** An access of one warp to a tile at the start of shared memory. */
struct Access {
  LabAccessKind kind;
  bool transposed;          // ldmatrix
  bool zeros;               // cp.async of rows past the end
  unsigned size;            // bytes per lane
  uint32_t offsets[LANES];  // in the tile
  uint32_t sources[LANES];  // cp.async: in the matrix in global memory
};

/** What the lab counts of an access. */
struct Counted {
  LabTraffic traffic;
  uint64_t sectors;  // of global memory that a cp.async reads
};

/** Executes an access under the lab. */
Counted count_access(const Access &access);

/**
 * Numbers the wavefront of each lane. Lanes are served in passes, as docs/lab.md says; in a pass, a
 * bank serves its distinct words one after the other, here in the order of the lanes. Returns the
 * number of wavefronts.
 */
int assign_waves(const Access &access, int (&waves)[LANES]);

#endif
