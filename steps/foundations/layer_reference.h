/**
 * @file
 * What f12 is checked with: the layer in double precision, forward and backward.
 *
 * Each tensor is computed twice, as docs/correctness.md has it: `ref` in double throughout, and
 * `base` with the roundings that no kernel on tensor cores avoids. A part of a tensor, such as dK
 * in dQKV, is right if its distance from ref is at most twice that of base, plus what sums in fp32
 * may do. Of a small layer both are computed from X, the weights and dY alone, so that what is
 * right is the whole. For a large one that takes too long: there each tensor is computed from the
 * ones that the device has, for a sample of its rows.
 */
#ifndef LAYER_REFERENCE_H
#define LAYER_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The tensors of a layer; a row of those of tokens has what belongs to a token. */
typedef enum LayerTensor {
  LAYER_X,
  LAYER_W_QKV,
  LAYER_W_O,
  LAYER_D_Y,
  LAYER_QKV,
  LAYER_LSE, /* fp32 */
  LAYER_O,
  LAYER_Y,
  LAYER_D_O,
  LAYER_D_W_O, /* fp32 */
  LAYER_D_QKV,
  LAYER_D_X,
  LAYER_D_W_QKV, /* fp32 */
  LAYER_TENSORS
} LayerTensor;

typedef struct Layer {
  int sequences, n;        /**< tokens of each */
  int heads, kv_heads;     /**< of queries, and of keys and values */
  int head_dim;            /**< D; a token has C = heads * head_dim numbers */
  bool rounded_p;          /**< as in the descriptor of the backward step */
  void *at[LAYER_TENSORS]; /**< in the memory of the device; the first four are the inputs */
} Layer;

/** Columns of QKV: all heads of queries, then those of keys, then those of values. */
static inline int layer_qkv_width(const Layer *layer) {
  return (layer->heads + 2 * layer->kv_heads) * layer->head_dim;
}

/** Is this tensor right? `note` says which rows were compared, or what is wrong. */
bool layer_is_right(const Layer *layer, LayerTensor tensor, char note[200]);

#ifdef __cplusplus
}
#endif

#endif
