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
    const union { uint32_t i; float f; } a = {(uint32_t)(half + 127) << 23},
                                         b = {(uint32_t)(whole - half + 127) << 23};
    return p * a.f * b.f;
}

/* tanh(x) to 3e-7 of its value: a quotient of polynomials, which reaches 1 at the bound. */
INLINE float hyperbolic(float x)
{
    x = x < -7.90531110763549805f ? -7.90531110763549805f : x;
    x = x > 7.90531110763549805f ? 7.90531110763549805f : x;
    const float s = x * x;
    float p = -2.76076847742355e-16f, q = 1.19825839466702e-06f;
    p = p * s + 2.00018790482477e-13f;
    p = p * s - 8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    q = q * s + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    return x * p / q;
}

INLINE float sigmoid(float x) { return 0.5f + 0.5f * hyperbolic(0.5f * x); }

/* How to walk over rows of windows. Places are counted in floats.

   x_rows, y_rows: where each row begins, in the input and in the output.
   taps: how far from a pixel each run of neighbouring inputs begins.
   from, to: pieces of x of one length that go between zeros first, where a buffer for that is
   given; without one all lies inside x. */
typedef struct {
    const int64_t *x_rows, *y_rows, *taps, *from, *to;
    int64_t rows, pixels, x_step, y_step, tap_count, run, copies, length;
} Walk;

INLINE const float *filled(const Walk *walk, const float *x, float *padded)
{
    for (int64_t i = 0; i < walk->copies; i++)
        memcpy(padded + walk->to[i], x + walk->from[i], walk->length * sizeof(float));
    return padded ? padded : x;
}

/* The walk over n rows of a matrix, the rows of x and y so many elements apart. */
#define ROWS(n, x_step, y_step, run)                                                                \
    {&(const int64_t){0}, &(const int64_t){0}, &(const int64_t){0}, 0, 0, 1, n, x_step, y_step, 1, run, 0, 0}

/* What several files use; each is explained where it is defined. */
void convolve(const Walk *walk, const float *x, float *padded, const float *w, int64_t w_step,
              int64_t panel, const float *bias, float *y, int64_t filters, int64_t how);
void convolve_kernel(const Walk *walk, const float *x, float *padded, const float *g, float *w,
                     float *sums, int64_t filters);
void multiply(const float *x, int64_t x_step, const float *w, int64_t w_step, float *y,
              int64_t y_step, int64_t n, int64_t k, int64_t m);
void transpose(const float *x, int64_t x_step, float *restrict out, int64_t out_step, int64_t rows,
               int64_t columns);
void gelu_forward(const float *z, float *s, float *y, int64_t n);
void gelu_backward(const float *g, const float *z, const float *s, float *d, int64_t n);
void softmax_back(float *d, const float *p, const float *h, const float *y, int64_t rows, int64_t n,
                  int64_t m, float scale);

#endif
