/* Vectors of floats, as wide as the processor's registers. */
#ifndef PICODL_COMMON_H
#define PICODL_COMMON_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#define VECTOR 16
#define REGISTERS 32
#elif defined(__AVX__)
#define VECTOR 8
#define REGISTERS 16
#else
#define VECTOR 4
#define REGISTERS 16
#endif

typedef float vec __attribute__((vector_size(4 * VECTOR), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(4 * VECTOR), aligned(4)));

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 32")

#endif
