/* Dense layers: a product with its bias and activation, and the products of the way back. */

#include "common.h"

/* y (n, m) = x (n, k) @ w (k, m) + bias; m a multiple of VECTOR; how: as for convolve. */
void dense(const float *x, const float *w, const float *bias, float *y, int64_t n, int64_t k,
           int64_t m, int64_t how)
{
    const Walk walk = ROWS(n, k, m, k);
    convolve(&walk, x, 0, w, m, VECTOR, bias, y, m, how);
}

/* The same in z, and its GELU in y; s as gelu_forward leaves it. */
void dense_gelu(const float *x, const float *w, const float *bias, float *z, float *s, float *y,
                int64_t n, int64_t k, int64_t m)
{
    dense(x, w, bias, z, n, k, m, 0);
    gelu_forward(z, s, y, n * m);
}

/* From h (n, m), the gradient of x @ w + bias, to those of w and the bias in dw (k + 1, m), and that
   of x in dx (n, k): the rows of dw and columns of dx from first to stop, and the bias's with the
   first. dw and dx may be NULL; turned: room for m * (stop - first) floats; m and, where there is a
   dx, stop - first are multiples of VECTOR. */
void dense_back(const float *x, const float *w, const float *h, float *dw, float *dx, float *turned,
                int64_t n, int64_t k, int64_t m, int64_t first, int64_t stop)
{
    const int64_t some = 262144 / (k + m) + 1; /* rows that stay in the cache */
    float *sums = dw && !first ? dw + k * m : 0;
    if (dw) memset(dw + first * m, 0, (stop - first) * m * sizeof(float));
    if (sums) memset(sums, 0, m * sizeof(float));
    for (int64_t i = 0; dw && i < n; i += some) {
        const Walk walk = ROWS(n - i < some ? n - i : some, k, m, stop - first);
        convolve_kernel(&walk, x + i * k + first, 0, h + i * m, dw + first * m, sums, m);
    }
    if (!dx) return;
    transpose(w + first * m, m, turned, stop - first, stop - first, m);
    multiply(h, m, turned, stop - first, dx + first, k, n, m, stop - first);
}

/* The same for all of it from g, the gradient of what dense_gelu put out; h is written over. */
void dense_gelu_back(const float *x, const float *w, const float *g, const float *z, const float *s,
                     float *h, float *dw, float *dx, float *turned, int64_t n, int64_t k, int64_t m)
{
    gelu_backward(g, z, s, h, n * m);
    dense_back(x, w, h, dw, dx, turned, n, k, m, 0, k);
}
