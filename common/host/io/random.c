/* Compile with -ffp-contract=off: a fused multiply-add rounds once where a product and a sum round
 * twice, so machines with and without it would draw different numbers. */

#include "host/io/random.h"

#include <math.h>
#include <string.h>

/** SplitMix64's step: 2^64 divided by the golden ratio, made odd. */
static const uint64_t STEP = 0x9e3779b97f4a7c15;

/** SplitMix64's finaliser: a bijection in which every input bit changes half of the output bits. */
static inline uint64_t mix(uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

uint64_t random_bits(uint64_t seed, uint32_t tensor, uint64_t index) {
  /* Hashed twice: otherwise nearby seeds or streams would be shifted copies of each other. */
  const uint64_t start = mix(mix(seed + STEP) + tensor);
  return mix(start + index * STEP);
}

double random_uniform(uint64_t seed, uint32_t tensor, uint64_t index) {
  /* 52 random bits and a last bit of 1, which excludes 0 and 1, fill a double's 53 bits exactly. */
  return (double)(random_bits(seed, tensor, index) >> 12) * 0x1p-52 + 0x1p-53;
}

/** Natural logarithm of a normal x > 0, to about one unit in the last place where |log x| > 1. */
static double portable_log(double x) {
  static const uint64_t SQRT_HALF = 0x3fe6a09e667f3bcd; /* the bits of sqrt(1/2) */
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  /* x = m * 2^exponent with m in [sqrt(1/2), sqrt(2)), where the series below converges fastest. */
  const int exponent = (int)((int64_t)(bits - SQRT_HALF) >> 52);
  bits -= (uint64_t)exponent << 52;
  double m;
  memcpy(&m, &bits, sizeof m);

  /* log m = 2 artanh f = 2 (f + f^3/3 + f^5/5 + ...) with |f| < 0.172: the rest is below 2^-60. */
  const double f = (m - 1) / (m + 1);
  const double f2 = f * f;
  double series = 0;
  for (int n = 21; n >= 3; n -= 2) series = (series + 1.0 / n) * f2;
  return exponent * 0x1.62e42fefa39efp-1 + 2 * (f + f * series);
}

/** Value at x of the polynomial with the coefficients c[0] + c[1] x + ... + c[7] x^7. */
static inline double polynomial(const double c[8], double x) {
  double y = c[7];
  for (int i = 6; i >= 0; i--) y = y * x + c[i];
  return y;
}

/** The p-quantile of N(0, 1) for p in (0, 1). The names of the coefficients are those of AS 241. */
static double normal_quantile(double p) {
  /* clang-format off */
  static const double A[8] = {3.3871328727963666080e0, 1.3314166789178437745e+2,
                              1.9715909503065514427e+3, 1.3731693765509461125e+4,
                              4.5921953931549871457e+4, 6.7265770927008700853e+4,
                              3.3430575583588128105e+4, 2.5090809287301226727e+3};
  static const double B[8] = {1.0, 4.2313330701600911252e+1, 6.8718700749205790830e+2,
                              5.3941960214247511077e+3, 2.1213794301586595867e+4,
                              3.9307895800092710610e+4, 2.8729085735721942674e+4,
                              5.2264952788528545610e+3};
  static const double C[8] = {1.42343711074968357734e0, 4.63033784615654529590e0,
                              5.76949722146069140550e0, 3.64784832476320460504e0,
                              1.27045825245236838258e0, 2.41780725177450611770e-1,
                              2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static const double D[8] = {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0,
                              6.89767334985100004550e-1, 1.48103976427480074590e-1,
                              1.51986665636164571966e-2, 5.47593808499534494600e-4,
                              1.05075007164441684324e-9};
  static const double E[8] = {6.65790464350110377720e0, 5.46378491116411436990e0,
                              1.78482653991729133580e0, 2.96560571828504891230e-1,
                              2.65321895265761230930e-2, 1.24266094738807843860e-3,
                              2.71155556874348757815e-5, 2.01033439929228813265e-7};
  static const double F[8] = {1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
                              1.48753612908506148525e-2, 7.86869131145613259100e-4,
                              1.84631831751005468180e-5, 1.42151175831644588870e-7,
                              2.04426310338993978564e-15};
  /* clang-format on */
  const double q = p - 0.5;
  if (fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(A, r) / polynomial(B, r);
  }
  const double r = sqrt(-portable_log(q < 0 ? p : 1 - p));
  const double z = r <= 5 ? polynomial(C, r - 1.6) / polynomial(D, r - 1.6)
                          : polynomial(E, r - 5) / polynomial(F, r - 5);
  return q < 0 ? -z : z;
}

double random_normal(uint64_t seed, uint32_t tensor, uint64_t index) {
  return normal_quantile(random_uniform(seed, tensor, index));
}
