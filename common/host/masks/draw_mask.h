/**
 * @file
 * A mask as a picture made of characters.
 */
#ifndef HOST_DRAW_MASK_H
#define HOST_DRAW_MASK_H

#include <stdio.h>

#include "host/masks/mask.h"

/**
 * Prints one character per block of `q_block` x `kv_block` entries of the first mask. If that gives
 * more than 64 rows or columns, a character stands for several blocks. EXIT_DEVICE if memory runs
 * out.
 */
bool draw_mask(const Mask *mask, int q_block, int kv_block, FILE *out, Error *error);

#endif
