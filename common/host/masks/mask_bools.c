/**
 * @file
 * Masks in .npy files are bool. A refusal of numbers says how to make a bool mask of them, which
 * depends on what they mean: 1 and 0, or 0 and -inf that are added to the scores.
 */
#include "host/masks/mask.h"

bool mask_read_bools(const char *path, NpyArray *array, Error *error) {
  static const NpyTypes ANY = {NPY_ANY_TYPE, "|b1 (bool)"};
  if (!npy_read(path, ANY, array, error)) return false;
  if (array->type == NPY_B1) return true;
  const NpyType type = array->type;
  const NpySigns signs = npy_signs(array);
  const bool may_be_added = type == NPY_F2 || type == NPY_F4 || type == NPY_F8;
  const char *advice =
      signs.negative && signs.positive ? "numbers of both signs, or NaN, cannot be a mask"
      : signs.negative ? "this mask is additive, so save mask == 0 (.astype(bool) would invert it)"
      : signs.positive || !may_be_added
          ? "save mask != 0"
          : "all are 0: save mask == 0 if the mask is additive, mask != 0 if 0 means masked";
  npy_free(array);
  return fail(error, EXIT_USAGE,
              "%s: element type '%s': expected |b1 (bool), True where a query attends to a key: %s",
              path, npy_type_name(type), advice);
}
