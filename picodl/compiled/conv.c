/* Convolutions of rows of pixels, straight from the images: no columns are made.

   A tile of pixels (or of taps) times one or two vectors of filters stays in registers while all
   that is summed into it goes by. Rows are given by where they begin, so that any rank, stride,
   dilation and layout of the output is the same loop. */

#include "common.h"

#define LONG (REGISTERS == 32 ? 16 : 12) /* of a tile one vector wide */
#define WIDE (REGISTERS == 32 ? 12 : 6)  /* of a tile two vectors wide */

int vector_length(void) { return VECTOR; }

INLINE vec load(const float *place, int64_t count)
{
    vec found = {0};
    if (count >= VECTOR) found = *(const vec *)place;
    else if (count > 0) memcpy(&found, place, 4 * count);
    return found;
}

/* y[p] = sum over r, j of x[p * x_step + taps[r] + j] * w[r * run + j], or with more y[p] += */
INLINE void tile(const int pixels, const int vectors, const float *x, int64_t x_step, const float *w,
                 int64_t w_step, int64_t panel, float *y, int64_t y_step, const int64_t *taps,
                 int64_t tap_count, int64_t run, int64_t filters, int more)
{
    vec sum[LONG][2];
    UNROLL for (int p = 0; p < pixels; p++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[p][v] = more ? load(y + p * y_step + v * VECTOR, filters - v * VECTOR) : (vec){0};
    for (int64_t r = 0; r < tap_count; r++) {
        const float *s = x + taps[r];
        for (int64_t j = 0; j < run; j++, w += w_step) {
            vec k[2];
            UNROLL for (int v = 0; v < vectors; v++) k[v] = *(const vec *)(w + v * panel);
            UNROLL for (int p = 0; p < pixels; p++)
                UNROLL for (int v = 0; v < vectors; v++) sum[p][v] += s[p * x_step + j] * k[v];
        }
    }
    UNROLL for (int p = 0; p < pixels; p++)
        UNROLL for (int v = 0; v < vectors; v++) {
            float *place = y + p * y_step + v * VECTOR;
            int64_t left = filters - v * VECTOR;
            if (left >= VECTOR) *(vec *)place = sum[p][v];
            else if (left > 0) memcpy(place, &sum[p][v], 4 * left);
        }
}

/* w[j] += sum over rows and pixels i of x[i * x_step + j] * g[i * g_step] */
INLINE void kernel_tile(const int count, const int vectors, const float *x, const float *g, float *w,
                        int64_t width, const int64_t *x_rows, const int64_t *g_rows, int64_t rows,
                        int64_t pixels, int64_t x_step, int64_t g_step)
{
    vec sum[LONG][2];
    UNROLL for (int j = 0; j < count; j++)
        UNROLL for (int v = 0; v < vectors; v++) sum[j][v] = (vec){0};
    for (int64_t n = 0; n < rows; n++) {
        const float *s = x + x_rows[n], *h = g + g_rows[n];
        for (int64_t i = 0; i < pixels; i++, s += x_step, h += g_step) {
            vec k[2];
            UNROLL for (int v = 0; v < vectors; v++) k[v] = *(const vec *)(h + v * VECTOR);
            UNROLL for (int j = 0; j < count; j++)
                UNROLL for (int v = 0; v < vectors; v++) sum[j][v] += s[j] * k[v];
        }
    }
    UNROLL for (int j = 0; j < count; j++)
        UNROLL for (int v = 0; v < vectors; v++) *(vec *)(w + j * width + v * VECTOR) += sum[j][v];
}

/* One function for each size of a tile. */
#define SIZES_6(CASE, vectors) \
    CASE(1, vectors) CASE(2, vectors) CASE(3, vectors) CASE(4, vectors) CASE(5, vectors) CASE(6, vectors)
#define SIZES_12(CASE, vectors)                                                                     \
    SIZES_6(CASE, vectors) CASE(7, vectors) CASE(8, vectors) CASE(9, vectors) CASE(10, vectors)     \
        CASE(11, vectors) CASE(12, vectors)
#define SIZES_16(CASE, vectors) \
    SIZES_12(CASE, vectors) CASE(13, vectors) CASE(14, vectors) CASE(15, vectors) CASE(16, vectors)
#if REGISTERS == 32
#define SIZES(CASE) SIZES_16(CASE, 1) SIZES_12(CASE, 2)
#else
#define SIZES(CASE) SIZES_12(CASE, 1) SIZES_6(CASE, 2)
#endif

#define TILE_CASE(size, vectors)                                                                    \
    case 2 * size + vectors - 1:                                                                    \
        tile(size, vectors, x, x_step, w, w_step, panel, y, y_step, taps, tap_count, run, filters,   \
             more);                                                                                  \
        break;
static void any_tile(int size, int vectors, const float *x, int64_t x_step, const float *w,
                     int64_t w_step, int64_t panel, float *y, int64_t y_step, const int64_t *taps,
                     int64_t tap_count, int64_t run, int64_t filters, int more)
{
    switch (2 * size + vectors - 1) { SIZES(TILE_CASE) }
}

#define KERNEL_CASE(size, vectors)                                                                  \
    case 2 * size + vectors - 1:                                                                    \
        kernel_tile(size, vectors, x, g, w, width, x_rows, g_rows, rows, pixels, x_step, g_step);   \
        break;
static void any_kernel_tile(int size, int vectors, const float *x, const float *g, float *w,
                            int64_t width, const int64_t *x_rows, const int64_t *g_rows,
                            int64_t rows, int64_t pixels, int64_t x_step, int64_t g_step)
{
    switch (2 * size + vectors - 1) { SIZES(KERNEL_CASE) }
}

/* Rows of the output: y[row n, pixel i, filter f]; with more, added to what is there.

   w: element (j, f) of the kernel is at w[f / VECTOR * panel + j * w_step + f % VECTOR], and whole
   vectors can be read.
   x_rows, y_rows: where each row begins. taps: how far from a pixel each run of inputs begins. */
void convolve(const float *x, const float *w, float *y, const int64_t *x_rows,
              const int64_t *y_rows, int64_t rows, int64_t pixels, int64_t x_step, int64_t y_step,
              const int64_t *taps, int64_t tap_count, int64_t run, int64_t filters, int64_t w_step,
              int64_t panel, int64_t more)
{
    for (int64_t f = 0; f < filters; f += 2 * VECTOR) {
        const int vectors = filters - f > VECTOR ? 2 : 1, most = vectors == 2 ? WIDE : LONG;
        const int64_t tiles = (pixels + most - 1) / most;
        for (int64_t n = 0; n < rows; n++)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t first = pixels * t / tiles, stop = pixels * (t + 1) / tiles;
                any_tile(stop - first, vectors, x + x_rows[n] + first * x_step, x_step,
                         w + f / VECTOR * panel, w_step, panel, y + y_rows[n] + first * y_step + f,
                         y_step, taps, tap_count, run, filters - f, more);
            }
    }
}

/* y (n, m) = x (n, k) @ w (k, m), rows so many elements apart; m a multiple of VECTOR. */
void multiply(const float *x, int64_t x_step, const float *w, int64_t w_step, float *y,
              int64_t y_step, int64_t n, int64_t k, int64_t m)
{
    const int64_t zero = 0;
    convolve(x, w, y, &zero, &zero, 1, n, x_step, y_step, &zero, 1, k, m, w_step, VECTOR, 0);
}

/* The kernel's gradient: w[r * run + j, f] += sum over rows and pixels of inputs times gradients.

   filters: of g and w, a multiple of VECTOR. The rest as above. */
void convolve_kernel(const float *x, const float *g, float *w, const int64_t *x_rows,
                     const int64_t *g_rows, int64_t rows, int64_t pixels, int64_t x_step,
                     int64_t g_step, const int64_t *taps, int64_t tap_count, int64_t run,
                     int64_t filters)
{
    const int64_t some = 8192 / (pixels * (x_step + g_step)) + 1; /* rows that stay in the cache */
    for (int64_t n = 0; n < rows; n += some) {
        const int64_t now = rows - n < some ? rows - n : some;
        for (int64_t r = 0; r < tap_count; r++)
            for (int64_t f = 0; f < filters; f += 2 * VECTOR) {
                const int vectors = filters - f > VECTOR ? 2 : 1, most = vectors == 2 ? WIDE : LONG;
                const int64_t tiles = (run + most - 1) / most;
                for (int64_t t = 0; t < tiles; t++) {
                    const int64_t first = run * t / tiles, stop = run * (t + 1) / tiles;
                    any_kernel_tile(stop - first, vectors, x + taps[r] + first, g + f,
                                    w + (r * run + first) * filters + f, filters, x_rows + n,
                                    g_rows + n, now, pixels, x_step, g_step);
                }
            }
    }
}
