/**
 * @file
 * The backward pass, and what a step that computes it provides in place of Step::forward.
 *
 * Such a step sets Step::backward and leaves Step::forward NULL. Its workspace is for D, for sums
 * that several thread blocks add to, and the like. All that describes a step keeps its meaning:
 * Step::supports, describe, workspace_bytes, workspace_zero and nondeterministic. A step that adds
 * in an order that may change sets the last.
 */
#ifndef BACKWARD_H
#define BACKWARD_H

#include "attention.h"

/**
 * Device pointers of one backward pass. L is any function of O; dO = dL/dO is given, and dQ, dK and
 * dV are wanted:
 *
 *     P = exp(scale * Q K^T - LSE)    0 where masked
 *     dV = P^T dO
 *     dP = dO V^T
 *     dS = P o (dP - D)               D[i] = sum over d of dO[i][d] O[i][d]
 *     dQ = scale * dS K
 *     dK = scale * dS^T Q
 *
 * A query that attends to no key has dQ = 0, and LSE = -inf; a key that no query attends to has
 * dK = dV = 0. With grouped heads dK and dV are the sums over the query heads of the group.
 *
 * All but LSE are of Problem::dtype, fp16 or bf16, and each gradient has the shape and the strides
 * of its tensor: Problem::q_strides are those of Q and dQ, and so on.
 */
typedef struct BackwardTensors {
  const void *q, *k, *v, *o; /**< the inputs of the forward pass and its output */
  const float *lse;          /**< [batch, q_heads, q_len], as the forward pass wrote it */
  const void *d_o;           /**< dO */
  void *d_q, *d_k, *d_v;     /**< the outputs, which the step writes as a whole: dQ, dK, dV */
  void *workspace;           /**< as Tensors::workspace */
  const struct BlockMask *block_mask; /**< as Tensors::block_mask */
  void *prepared;                     /**< as Tensors::prepared */
} BackwardTensors;

#endif
