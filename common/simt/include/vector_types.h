/**
 * @file
 * CUDA's small vectors, for the CPU backend.
 *
 * A copy of a vector is one access of its full width, as on a GPU. Otherwise a compiler may
 * split it into one access per member, and counts of memory transactions would be wrong.
 */
#ifndef VECTOR_TYPES_H
#define VECTOR_TYPES_H

#ifndef __cplusplus

typedef struct uint3 {
  unsigned x, y, z;
} uint3;

typedef struct dim3 {
  unsigned x, y, z;
} dim3;

#else

#define SIMT_INLINE inline __attribute__((always_inline))

/** A function of one expression. */
#define SIMT_FUNCTION(T, name, parameters, ...) \
  SIMT_INLINE T name parameters {               \
    return __VA_ARGS__;                         \
  }

struct uint3 {
  unsigned x, y, z;
};

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

namespace simt {

/** WordN copies N bytes as one machine word or vector. */
typedef unsigned Word4 __attribute__((may_alias));
typedef unsigned long long Word8 __attribute__((may_alias));
typedef float Word16 __attribute__((vector_size(16), may_alias));

}  // namespace simt

/**
 * The members that every vector needs. The default constructor does nothing, so that arrays of
 * vectors can be shared memory.
 */
#define SIMT_VECTOR_MEMBERS(Vector, Word)              \
  Vector() = default;                                  \
  SIMT_INLINE Vector(const Vector &other) {            \
    *(simt::Word *)this = *(const simt::Word *)&other; \
  }                                                    \
  SIMT_INLINE Vector &operator=(const Vector &other) { \
    *(simt::Word *)this = *(const simt::Word *)&other; \
    return *this;                                      \
  }

#define SIMT_VECTOR2(Vector, Element, Word)                  \
  struct alignas(sizeof(simt::Word)) Vector {                \
    Element x, y;                                            \
    SIMT_VECTOR_MEMBERS(Vector, Word)                        \
    SIMT_INLINE Vector(Element a, Element b) : x(a), y(b) {} \
  };                                                         \
  SIMT_FUNCTION(Vector, make_##Vector, (Element x, Element y), {x, y})

#define SIMT_VECTOR4(Vector, Element, Word)                                                    \
  struct alignas(sizeof(simt::Word)) Vector {                                                  \
    Element x, y, z, w;                                                                        \
    SIMT_VECTOR_MEMBERS(Vector, Word)                                                          \
    SIMT_INLINE Vector(Element a, Element b, Element c, Element d) : x(a), y(b), z(c), w(d) {} \
  };                                                                                           \
  SIMT_FUNCTION(Vector, make_##Vector, (Element x, Element y, Element z, Element w), {x, y, z, w})

/** Of three, which no single access copies. */
#define SIMT_VECTOR3(Vector, Element) \
  struct Vector {                     \
    Element x, y, z;                  \
  };                                  \
  SIMT_FUNCTION(Vector, make_##Vector, (Element x, Element y, Element z), {x, y, z})

SIMT_VECTOR2(float2, float, Word8)
SIMT_VECTOR2(int2, int, Word8)
SIMT_VECTOR2(uint2, unsigned, Word8)
SIMT_VECTOR2(double2, double, Word16)
SIMT_VECTOR2(short2, short, Word4)
SIMT_VECTOR2(ushort2, unsigned short, Word4)
SIMT_VECTOR3(float3, float)
SIMT_VECTOR3(int3, int)
SIMT_VECTOR4(float4, float, Word16)
SIMT_VECTOR4(int4, int, Word16)
SIMT_VECTOR4(uint4, unsigned, Word16)
SIMT_VECTOR4(short4, short, Word8)
SIMT_VECTOR4(ushort4, unsigned short, Word8)
SIMT_VECTOR4(char4, signed char, Word4)
SIMT_VECTOR4(uchar4, unsigned char, Word4)

#endif

#endif
