/** @file Tests of host/io/random.c: the same bits on every machine, also in the tails of the normal
 * numbers. */
#include "host/io/random.h"

#include <string.h>

#include "../testing.h" /* last */

static uint64_t double_bits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

/** One element, with its bits, which are the same on every machine. */
typedef struct Stored {
  uint64_t seed;
  uint32_t tensor;
  uint64_t index;
  uint64_t bits, uniform, normal;
} Stored;

static const Stored stored[] = {
    {0, 0, 0x0, 0x33fe8bd4f9c57863, 0x3fc9ff45ea7ce2bc, 0xbfea94302ff1661f},
    {0, 0, 0x1, 0x568a9b0b1a2c05ec, 0x3fd5a2a6c2c68b02, 0xbfdabcf9ea503baf},
    {0, 1, 0x0, 0x943afb10d107f8fd, 0x3fe2875f621a20ff, 0x3fc985ee640d2196},
    {1, 0, 0x0, 0x0a385ef24fa6a992, 0x3fa470bde49f4d50, 0xbffc067d53dfd497},
    {42, 2, 0xf4240, 0x1b00676a4489389e, 0x3fbb00676a448938, 0xbff403ec7569bab9},
    {42, 3, 0x12a05f200, 0x7f183fdd64aa045a, 0x3fdfc60ff7592a82, 0xbf82275c3a977ad0},
    {UINT64_MAX, UINT32_MAX, UINT64_MAX, 0xeeeccc3305909fce, 0x3feddd998660b213,
     0x3ff8036a7c179e60},
    {0, 0, 0x8ef6d54227cac2, 0x0123456789abcdef, 0x3f723456789abc80, 0xc004ee2dc0a9e007},
    {0, 0, 0xaf0154a15099c278, 0xffff000000001234, 0x3fefffe000000003, 0x4010ada394a8d7ae},
    {0, 0, 0xf6c33ffa04fdce7f, 0x0000000123456789, 0x3df2345680000000, 0xc018d70c5592e892},
    {0, 0, 0xa45685335644731b, 0x0000000012345678, 0x3db2345800000000, 0xc01a872ea84f273a},
    {0, 0, 0xbba98df5fee6817d, 0x0000000000000000, 0x3ca0000000000000, 0xc0206b48528cea51},
    {0, 0, 0x30fdd71d1ddc283d, 0xffffffffffffffff, 0x3fefffffffffffff, 0x40206b48528cea51},
};

TEST(values_are_the_same_on_every_machine) {
  for (size_t i = 0; i < sizeof stored / sizeof stored[0]; i++) {
    const Stored *s = &stored[i];
    assert_true(random_bits(s->seed, s->tensor, s->index) == s->bits);
    assert_true(double_bits(random_uniform(s->seed, s->tensor, s->index)) == s->uniform);
    assert_true(double_bits(random_normal(s->seed, s->tensor, s->index)) == s->normal);
  }
}

RUN_TESTS(NULL, NULL)
