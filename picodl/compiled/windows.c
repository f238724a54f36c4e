/* Windows channel by channel: depthwise convolutions and the maxima of pooling.

   Channels are neighbours, and their number is a multiple of VECTOR. */

#include "common.h"

#define TILE (REGISTERS / 2)

INLINE vec at(const float *place) { return *(const vec *)place; }

INLINE void depthwise_tile(const int pixels, const float *x, int64_t x_step, const float *w, float *y,
                           int64_t y_step, const int64_t *taps, int64_t tap_count, int64_t channels)
{
    vec sum[TILE];
    UNROLL for (int p = 0; p < pixels; p++) sum[p] = (vec){0};
    for (int64_t k = 0; k < tap_count; k++, w += channels)
        UNROLL for (int p = 0; p < pixels; p++) sum[p] += at(x + taps[k] + p * x_step) * at(w);
    UNROLL for (int p = 0; p < pixels; p++) *(vec *)(y + p * y_step) = sum[p];
}

/* y[row, pixel, c] = sum over the taps of x[... + taps[k] + c] * w[k, c]. */
void depthwise(const Walk *walk, const float *x, const float *w, float *y, int64_t channels)
{
    const int64_t rows = walk->rows, pixels = walk->pixels;
    const int64_t x_step = walk->x_step, y_step = walk->y_step;
    for (int64_t n = 0; n < rows; n++)
        for (int64_t c = 0; c < channels; c += VECTOR)
            for (int64_t i = 0; i < pixels;) {
                const float *s = x + walk->x_rows[n] + c + i * x_step;
                float *t = y + walk->y_rows[n] + c + i * y_step;
                const int64_t some = pixels - i >= 8 ? 8 : pixels - i >= 4 ? 4 : 1;
#define PART(count)                                                                                 \
    depthwise_tile(count, s, x_step, w + c, t, y_step, walk->taps, walk->tap_count, channels)
                if (some == 8) PART(8);
                else if (some == 4) PART(4);
                else PART(1);
#undef PART
                i += some;
            }
}

INLINE void depthwise_kernel_tile(const int count, const float *x, const float *g, float *w,
                                  int64_t pixels, int64_t x_step, int64_t g_step,
                                  const int64_t *taps, int64_t channels)
{
    vec sum[TILE];
    UNROLL for (int k = 0; k < count; k++) sum[k] = at(w + k * channels);
    for (int64_t i = 0; i < pixels; i++, x += x_step, g += g_step)
        UNROLL for (int k = 0; k < count; k++) sum[k] += at(x + taps[k]) * at(g);
    UNROLL for (int k = 0; k < count; k++) *(vec *)(w + k * channels) = sum[k];
}

/* The gradient of its kernel: w[k, c] += sum over rows and pixels of inputs times gradients. */
void depthwise_kernel(const Walk *walk, const float *x, const float *g, float *w, int64_t channels)
{
    const int64_t rows = walk->rows, pixels = walk->pixels, tap_count = walk->tap_count;
    for (int64_t n = 0; n < rows; n++)
        for (int64_t c = 0; c < channels; c += VECTOR)
            for (int64_t k = 0; k < tap_count;) {
                const float *s = x + walk->x_rows[n] + c, *h = g + walk->y_rows[n] + c;
                const int64_t some = tap_count - k >= 3 ? 3 : 1;
#define PART(count)                                                                                 \
    depthwise_kernel_tile(count, s, h, w + k * channels + c, pixels, walk->x_step, walk->y_step,        \
                          walk->taps + k, channels)
                if (some == 3) PART(3);
                else PART(1);
#undef PART
                k += some;
            }
}

/* y = the largest of each window; NaN counts as larger than all. */
void max_pool(const Walk *walk, const float *x, float *y, int64_t channels)
{
    const int64_t *taps = walk->taps;
    for (int64_t n = 0; n < walk->rows; n++)
        for (int64_t i = 0; i < walk->pixels; i++)
            for (int64_t c = 0; c < channels; c += VECTOR) {
                const float *s = x + walk->x_rows[n] + i * walk->x_step + c;
                vec top = at(s + taps[0]);
                for (int64_t k = 1; k < walk->tap_count; k++) {
                    const vec other = at(s + taps[k]);
                    const ivec keep = (top >= other) | (top != top);
                    top = (vec)(((ivec)top & keep) | ((ivec)other & ~keep));
                }
                *(vec *)(y + walk->y_rows[n] + i * walk->y_step + c) = top;
            }
}

/* Add g to d where the first of the largest elements of each window stands. */
void max_pool_back(const Walk *walk, const float *x, const float *y, const float *g, float *d,
                   int64_t channels)
{
    for (int64_t n = 0; n < walk->rows; n++)
        for (int64_t i = 0; i < walk->pixels; i++)
            for (int64_t c = 0; c < channels; c += VECTOR) {
                const int64_t from = walk->x_rows[n] + i * walk->x_step + c;
                const int64_t to = walk->y_rows[n] + i * walk->y_step + c;
                const vec top = at(y + to);
                ivec left = (ivec)at(g + to); /* what no element has got yet */
                for (int64_t k = 0; k < walk->tap_count; k++) {
                    const int64_t place = from + walk->taps[k];
                    const ivec wins = k + 1 < walk->tap_count ? at(x + place) == top : ~(ivec){0};
                    *(vec *)(d + place) += (vec)(left & wins);
                    left &= ~wins;
                }
            }
}
