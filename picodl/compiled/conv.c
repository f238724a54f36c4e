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

enum { MORE = 1, RELU = 2 };

/* y[p] = sum over r, j of x[p * x_step + taps[r] + j] * w[r * run + j], plus what there was or the
   bias. */
INLINE void tile(const int pixels, const int vectors, const Walk *walk, const float *x,
                 const float *w, int64_t w_step, int64_t panel, const float *bias, float *y,
                 int64_t filters, int how)
{
    const int64_t x_step = walk->x_step, y_step = walk->y_step, run = walk->run;
    vec sum[LONG][2];
    UNROLL for (int p = 0; p < pixels; p++)
        UNROLL for (int v = 0; v < vectors; v++)
            sum[p][v] = how & MORE ? load(y + p * y_step + v * VECTOR, filters - v * VECTOR)
                        : bias     ? *(const vec *)(bias + v * VECTOR)
                                   : (vec){0};
    for (int64_t r = 0; r < walk->tap_count; r++) {
        const float *s = x + walk->taps[r];
        for (int64_t j = 0; j < run; j++, w += w_step) {
            vec k[2];
            UNROLL for (int v = 0; v < vectors; v++) k[v] = *(const vec *)(w + v * panel);
            UNROLL for (int p = 0; p < pixels; p++)
                UNROLL for (int v = 0; v < vectors; v++) sum[p][v] += s[p * x_step + j] * k[v];
        }
    }
    UNROLL for (int p = 0; p < pixels; p++)
        UNROLL for (int v = 0; v < vectors; v++) {
            vec z = sum[p][v];
            if (how & RELU) z = (vec)((ivec)z & ~(z < 0.0f));
            float *place = y + p * y_step + v * VECTOR;
            const int64_t left = filters - v * VECTOR;
            if (left >= VECTOR) *(vec *)place = z;
            else if (left > 0) memcpy(place, &z, 4 * left);
        }
}

/* w[j] += sum over rows and pixels i of x[i * x_step + j] * g[i * y_step] */
INLINE void kernel_tile(const int count, const int vectors, const Walk *walk, int64_t first,
                        int64_t stop, const float *x, const float *g, float *w, int64_t width)
{
    vec sum[LONG][2];
    UNROLL for (int j = 0; j < count; j++)
        UNROLL for (int v = 0; v < vectors; v++) sum[j][v] = (vec){0};
    for (int64_t n = first; n < stop; n++) {
        const float *s = x + walk->x_rows[n], *h = g + walk->y_rows[n];
        for (int64_t i = 0; i < walk->pixels; i++, s += walk->x_step, h += walk->y_step) {
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
        tile(size, vectors, walk, x, w, w_step, panel, bias, y, filters, how);                      \
        break;
static void any_tile(int size, int vectors, const Walk *walk, const float *x, const float *w,
                     int64_t w_step, int64_t panel, const float *bias, float *y, int64_t filters,
                     int how)
{
    switch (2 * size + vectors - 1) { SIZES(TILE_CASE) }
}

#define KERNEL_CASE(size, vectors)                                                                  \
    case 2 * size + vectors - 1:                                                                    \
        kernel_tile(size, vectors, walk, first, stop, x, g, w, width);                              \
        break;
static void any_kernel_tile(int size, int vectors, const Walk *walk, int64_t first, int64_t stop,
                            const float *x, const float *g, float *w, int64_t width)
{
    switch (2 * size + vectors - 1) { SIZES(KERNEL_CASE) }
}

/* Rows of the output: y[row n, pixel i, filter f].

   padded: a buffer of zeros for the walk's copies; NULL if the windows lie inside x.
   w: element (j, f) of the kernel is at w[f / VECTOR * panel + j * w_step + f % VECTOR], and whole
   vectors of it and of the bias can be read; the bias may be NULL.
   how: MORE adds to what is there instead of a bias, RELU sets what is below 0 to 0. */
void convolve(const Walk *walk, const float *x, float *padded, const float *w, int64_t w_step,
              int64_t panel, const float *bias, float *y, int64_t filters, int64_t how)
{
    const int64_t pixels = walk->pixels;
    x = filled(walk, x, padded);
    for (int64_t f = 0; f < filters; f += 2 * VECTOR) {
        const int vectors = filters - f > VECTOR ? 2 : 1, most = vectors == 2 ? WIDE : LONG;
        const int64_t tiles = (pixels + most - 1) / most;
        for (int64_t n = 0; n < walk->rows; n++)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t first = pixels * t / tiles, stop = pixels * (t + 1) / tiles;
                any_tile(stop - first, vectors, walk, x + walk->x_rows[n] + first * walk->x_step,
                         w + f / VECTOR * panel, w_step, panel, bias ? bias + f : 0,
                         y + walk->y_rows[n] + first * walk->y_step + f, filters - f, how);
            }
    }
}

/* y (n, m) = x (n, k) @ w (k, m), rows so many elements apart; m a multiple of VECTOR. */
void multiply(const float *x, int64_t x_step, const float *w, int64_t w_step, float *y,
              int64_t y_step, int64_t n, int64_t k, int64_t m)
{
    const Walk walk = ROWS(n, x_step, y_step, k);
    convolve(&walk, x, 0, w, w_step, VECTOR, 0, y, m, 0);
}

/* The kernel's gradient: w[r * run + j, f] += sum over rows and pixels of inputs times gradients g;
   and the bias's, sums[f] += sum of gradients, which may be NULL.

   filters: of g and w, a multiple of VECTOR. The rest as above. */
void convolve_kernel(const Walk *walk, const float *x, float *padded, const float *g, float *w,
                     float *sums, int64_t filters)
{
    /* rows that stay in the cache */
    const int64_t some = 8192 / (walk->pixels * (walk->x_step + walk->y_step)) + 1;
    x = filled(walk, x, padded);
    for (int64_t first = 0; first < walk->rows; first += some) {
        const int64_t stop = first + some < walk->rows ? first + some : walk->rows;
        for (int64_t r = 0; r < walk->tap_count; r++)
            for (int64_t f = 0; f < filters; f += 2 * VECTOR) {
                const int vectors = filters - f > VECTOR ? 2 : 1, most = vectors == 2 ? WIDE : LONG;
                const int64_t tiles = (walk->run + most - 1) / most;
                for (int64_t t = 0; t < tiles; t++) {
                    const int64_t j = walk->run * t / tiles, next = walk->run * (t + 1) / tiles;
                    any_kernel_tile(next - j, vectors, walk, first, stop, x + walk->taps[r] + j,
                                    g + f, w + (r * walk->run + j) * filters + f, filters);
                }
            }
        for (int64_t f = 0; sums && f < filters; f += VECTOR) {
            vec all = {0};
            for (int64_t n = first; n < stop; n++) {
                vec row = {0}; /* a sum of sums is more exact than one long sum */
                for (int64_t i = 0; i < walk->pixels; i++)
                    row += *(const vec *)(g + walk->y_rows[n] + i * walk->y_step + f);
                all += row;
            }
            *(vec *)(sums + f) += all;
        }
    }
}
