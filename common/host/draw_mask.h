/**
 * @file
 * A mask as a picture made of characters.
 */
#ifndef HOST_DRAW_MASK_H
#define HOST_DRAW_MASK_H

#include <stdio.h>

#include "attention.h"

/** Prints one character per block of `q_block` x `kv_block` entries, at most about 64 x 64 of them.
 */
void draw_mask(const Problem *problem, int q_block, int kv_block, FILE *out);

#endif
