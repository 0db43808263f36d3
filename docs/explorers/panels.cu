/**
 * @file
 * Where tensor copies put what they bring. The object file keeps all names of the step
 * to itself.
 */
#include "panels.cuh"  // a step with panels, for swizzled_byte()

extern "C" uint32_t place_in_panels(int panel_columns, int rows, int row, int at) {
  const int row_bytes = 2 * panel_columns, column = at % row_bytes / 2;
  const int in_panel =
      panel_columns == 64 ? swizzled_byte<64, 1>(row, column) : swizzled_byte<32, 1>(row, column);
  return at / row_bytes * rows * row_bytes + in_panel + at % 2;
}
