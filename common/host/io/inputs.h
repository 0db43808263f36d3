/**
 * @file
 * Q, K and V in host memory: drawn from the seed, or read from a directory.
 */
#ifndef HOST_INPUTS_H
#define HOST_INPUTS_H

#include <stdint.h>

#include "attention.h"
#include "host/base/error.h"
#include "host/cli/options.h"
#include "host/io/npy.h"
#include "host/masks/mask.h"

typedef struct Inputs {
  uint16_t *q, *k, *v; /**< bit patterns of the problem's dtype, with its strides */
  int64_t nan_count;   /**< NaN among them */
  NpyArray files[3];   /**< q.npy, k.npy, v.npy until inputs_fill() has taken them over */
} Inputs;

/**
 * With --input DIR: reads the three files, checks that they fit each other and the dtype, and puts
 * their shapes into `options`, where they win over what the user gave. Otherwise does nothing.
 */
bool inputs_open(Options *options, Inputs *inputs, Error *error);

/**
 * Rewrites a refusal that names dimensions by their options, "--head-dim 48: ...", so that it names
 * the file that they came from instead: "in/q.npy: head dimension 48: ...".
 */
void inputs_blame_files(const Options *options, Error *error);

/**
 * Allocates and fills q, k and v.
 *
 * The value of an element depends on the seed, the tensor and the element's index in [B, H, N, D]
 * order, whatever the layout. normal: N(0,1). outlier: N(0,1), plus N(0,100) with probability
 * 0.001. spiky: a query is four times a key that it attends plus N(0,0.01), so that most rows are
 * nearly one-hot. constant: 0.5 everywhere.
 */
bool inputs_fill(const Options *options, const Problem *problem, const Mask *mask, Inputs *inputs,
                 Error *error);

/** Frees everything; harmless on a zeroed struct. */
void inputs_free(Inputs *inputs);

#endif
