/* Normalisation: sums and combinations over rows, each in one walk. */

#include "common.h"

/* y = x * a + b on rows of so many elements; b may be NULL. */
void scale_rows(const float *x, const float *a, const float *b, float *y, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows; i++, x += width, y += width) {
        if (b) {
            SIMD for (int64_t j = 0; j < width; j++) y[j] = x[j] * a[j] + b[j];
        } else {
            SIMD for (int64_t j = 0; j < width; j++) y[j] = x[j] * a[j];
        }
    }
}

/* y = g * a + x * b + c on rows. */
void combine_rows(const float *g, const float *x, const float *a, const float *b, const float *c,
                  float *y, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows; i++, g += width, x += width, y += width)
        SIMD for (int64_t j = 0; j < width; j++) y[j] = g[j] * a[j] + (x[j] * b[j] + c[j]);
}

/* total = sum over the rows of (x - m) * g; for a NULL g of (x - m)^2. */
void product_sums(const float *x, const float *m, const float *g, float *total, int64_t rows,
                  int64_t width)
{
    memset(total, 0, width * sizeof(float));
    for (int64_t i = 0; i < rows; i++, x += width) {
        if (g) {
            SIMD for (int64_t j = 0; j < width; j++) total[j] += (x[j] - m[j]) * g[j];
            g += width;
        } else {
            SIMD for (int64_t j = 0; j < width; j++) total[j] += (x[j] - m[j]) * (x[j] - m[j]);
        }
    }
}

/* y = (x - mean) / sqrt(variance + epsilon) * gamma + beta for each row; without center no mean is
   taken off. gamma and beta may be NULL; center and inverse are kept for the way back. */
void normalize_rows(const float *x, const float *gamma, const float *beta, float *center,
                    float *inverse, float *y, int64_t rows, int64_t n, float epsilon)
{
    for (int64_t i = 0; i < rows; i++, x += n, y += n) {
        float mean = 0, square = 0;
        if (center) {
            SIMD_SUM(mean) for (int64_t j = 0; j < n; j++) mean += x[j];
            mean /= n;
            center[i] = mean;
        }
        SIMD_SUM(square) for (int64_t j = 0; j < n; j++) square += (x[j] - mean) * (x[j] - mean);
        const float scale = inverse[i] = 1.0f / sqrtf(square / n + epsilon);
        SIMD for (int64_t j = 0; j < n; j++) y[j] = (x[j] - mean) * scale;
        if (gamma) SIMD for (int64_t j = 0; j < n; j++) y[j] *= gamma[j];
        if (beta) SIMD for (int64_t j = 0; j < n; j++) y[j] += beta[j];
    }
}

/* The way back: d, and sums over the rows for gamma and beta; either may be NULL with its sum. */
void normalize_rows_back(const float *x, const float *g, const float *gamma, const float *center,
                         const float *inverse, float *d, float *for_gamma, float *for_beta,
                         int64_t rows, int64_t n)
{
    if (for_gamma) memset(for_gamma, 0, n * sizeof(float));
    if (for_beta) memset(for_beta, 0, n * sizeof(float));
    for (int64_t i = 0; i < rows; i++, x += n, g += n, d += n) {
        const float mean = center ? center[i] : 0, scale = inverse[i];
        if (for_beta) SIMD for (int64_t j = 0; j < n; j++) for_beta[j] += g[j];
        if (for_gamma) SIMD for (int64_t j = 0; j < n; j++) for_gamma[j] += g[j] * (x[j] - mean) * scale;
        float sum = 0, product = 0;
        if (gamma) {
            SIMD for (int64_t j = 0; j < n; j++) d[j] = g[j] * gamma[j];
        } else
            memcpy(d, g, n * sizeof(float));
        SIMD_SUM(sum, product) for (int64_t j = 0; j < n; j++) {
            sum += d[j];
            product += d[j] * (x[j] - mean);
        }
        sum = center ? sum / n : 0;
        product *= scale * scale / n;
        SIMD for (int64_t j = 0; j < n; j++) d[j] = scale * (d[j] - sum - (x[j] - mean) * product);
    }
}
