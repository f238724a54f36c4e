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
#define SIMD _Pragma("omp simd")
#define SIMD_SUM(...) _Pragma(SIMD_TEXT(omp simd reduction(+ : __VA_ARGS__)))
#define SIMD_TEXT(text) #text

/* exp(x) to 2 units in the last place, without branches, so that loops of it become vectors:
   2^n exp(r) with r = x - n log 2 and a polynomial of degree 6 for exp(r). */
INLINE float exponential(float x)
{
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* rounds */
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    /* in two steps, as 2^n alone may be no float */
    const int32_t whole = (int32_t)n, half = whole >> 1;
    const union { int32_t i; float f; } a = {(half + 127) << 23}, b = {(whole - half + 127) << 23};
    return p * a.f * b.f;
}

/* tanh(x) to 2 units in the last place; an odd polynomial near 0. */
INLINE float hyperbolic(float x)
{
    const float s = x * x;
    float p = -5.70498872745e-3f;
    p = p * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    const float near = p * s * x + x, far = 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f);
    return s < 0.390625f ? near : far;
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

void multiply(const float *x, int64_t x_step, const float *w, int64_t w_step, float *y,
              int64_t y_step, int64_t n, int64_t k, int64_t m);

#endif
