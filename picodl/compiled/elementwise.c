/* Activations and update rules: many numpy calls on the same elements in one walk. */

#include "common.h"

/* y = z / s with s = 1 + exp(-u(z)), u as in ops/activation_gelu.py with its two fractions made one;
   far out, where y is z or 0, its square is cut off. */
void gelu_forward(const float *z, float *s, float *y, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++) {
        const float square = z[i] * z[i], q = square > 1e4f ? 1e4f : square;
        const float top = q + 33.4665123f, bottom = (q - 10.1421307f) * top + 656.298133f;
        const float u = z[i] * (-2.45889791f - 3.49146349e-2f * q + 8.17247394f * top / bottom);
        s[i] = 1.0f + exponential(u);
        y[i] = z[i] / s[i];
    }
}

/* d = g * (1 / s + z * density(z)). */
void gelu_backward(const float *g, const float *z, const float *s, float *d, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++)
        d[i] = g[i] * (1.0f / s[i] + 0.398942280f * z[i] * exponential(-0.5f * z[i] * z[i]));
}

/* d = g where y > 0, else 0. */
void relu_backward(const float *g, const float *y, float *d, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++) d[i] = y[i] > 0 ? g[i] : g[i] * 0.0f;
}

/* y = a + b where that is above 0, else 0. */
void add_relu(const float *a, const float *b, float *y, int64_t n)
{
    SIMD for (int64_t i = 0; i < n; i++) {
        const float sum = a[i] + b[i];
        y[i] = sum < 0 ? 0.0f : sum;
    }
}

/* Adam's rule, as in optimizers/adam.py. Each sum holds one product: there is one way to fuse them,
   so that a weight's step does not depend on its place in the array. */
void adam(const float *g, float *w, float *m, float *v, int64_t n, float minus_alpha, float epsilon,
          float share_1, float share_2)
{
    SIMD for (int64_t i = 0; i < n; i++) {
        m[i] += share_1 * (g[i] - m[i]);
        v[i] += share_2 * (g[i] * g[i] - v[i]);
        w[i] += minus_alpha * (m[i] / (sqrtf(v[i]) + epsilon));
    }
}

/* s = exp(s) on rows of n, and one over the sum of each row. */
void exp_rows(float *s, float *inverse, int64_t rows, int64_t n)
{
    for (int64_t i = 0; i < rows; i++, s += n) {
        float sum = 0;
        SIMD_SUM(sum) for (int64_t j = 0; j < n; j++) {
            s[j] = exponential(s[j]);
            sum += s[j];
        }
        inverse[i] = 1.0f / sum;
    }
}

/* The way back of a softmax: d = (d - h y) * p * scale on rows of n, with the product h y of the
   output's gradient and the output, rows of m. */
void softmax_back(float *d, const float *p, const float *h, const float *y, int64_t rows, int64_t n,
                  int64_t m, float scale)
{
    for (int64_t i = 0; i < rows; i++, d += n, p += n, h += m, y += m) {
        float sum = 0;
        SIMD_SUM(sum) for (int64_t j = 0; j < m; j++) sum += h[j] * y[j];
        SIMD for (int64_t j = 0; j < n; j++) d[j] = (d[j] - sum) * p[j] * scale;
    }
}
