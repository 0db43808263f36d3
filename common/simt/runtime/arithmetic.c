/* Arithmetic on floats with a rounding mode. A processor rounds as IEEE 754 says, as a GPU does. */
#include <fenv.h>
#include <math.h>

#include "runtime.h"

float simt_round(SimtArithmetic operation, SimtRounding rounding, double x, double y, double z) {
  static const int MODES[] = {FE_TONEAREST, FE_TOWARDZERO, FE_UPWARD, FE_DOWNWARD};
  /* volatile, so that the operation stays between the two changes of the mode */
  volatile float a = (float)x, b = (float)y, c = (float)z, result = 0;
  volatile double wide = x;
  fesetround(MODES[rounding]);
  switch (operation) {
    case SIMT_ADD:
      result = a + b;
      break;
    case SIMT_MULTIPLY:
      result = a * b;
      break;
    case SIMT_DIVIDE:
      result = a / b;
      break;
    case SIMT_FUSED:
      result = fmaf(a, b, c);
      break;
    case SIMT_SQUARE_ROOT:
      result = sqrtf(a);
      break;
    case SIMT_TO_FLOAT:
      result = (float)wide;
      break;
  }
  fesetround(FE_TONEAREST);
  return result;
}
