/* LSTM and GRU over whole sequences; layouts as in ops/recurrence.py, with the batch last.

   b is a multiple of VECTOR. stale, (steps, b), says which samples a mask holds back; NULL without
   a mask. */

#include "common.h"

/* Where stale, what was before stays. */
static void hold(float *now, const float *before, const uint8_t *stale, int64_t u, int64_t b)
{
    for (int64_t i = 0; i < u; i++)
        for (int64_t j = 0; j < b; j++)
            if (stale[j]) now[i * b + j] = before[i * b + j];
}

/* What has faded to nothing becomes 0: products with subnormal numbers are slow. */
static void flush(float *d, int64_t n, float tiny)
{
    SIMD for (int64_t i = 0; i < n; i++) d[i] = fabsf(d[i]) < tiny ? 0.0f : d[i];
}

/* weights (4u, k) with gates o, i, f, g; hx (steps + 1, k, b), states first; z (steps, 4u, b);
   c (steps + 1, u, b); tanh_c (steps, u, b). */
void lstm_forward(const float *weights, float *hx, float *z, float *c, float *tanh_c,
                  const uint8_t *stale, int64_t steps, int64_t u, int64_t k, int64_t b)
{
    const int64_t n = u * b;
    for (int64_t t = 0; t < steps; t++, hx += k * b, z += 4 * n, c += n, tanh_c += n) {
        multiply(weights, k, hx, b, z, b, 4 * u, k, b);
        float *restrict o = z, *restrict in = z + n, *restrict f = z + 2 * n, *restrict g = z + 3 * n;
        float *restrict h = hx + k * b, *restrict y = tanh_c, *restrict now = c + n;
        SIMD for (int64_t i = 0; i < n; i++) {
            o[i] = sigmoid(o[i]);
            in[i] = sigmoid(in[i]);
            f[i] = sigmoid(f[i]);
            g[i] = hyperbolic(g[i]);
            now[i] = f[i] * c[i] + in[i] * g[i];
            y[i] = hyperbolic(now[i]);
            h[i] = o[i] * y[i];
        }
        if (stale) {
            hold(h, hx, stale + t * b, u, b);
            hold(now, c, stale + t * b, u, b);
        }
    }
}

/* One step back through the gates: from the gradients of the states to those of the gates, d, and
   of the states before; what d adds to the bias's goes into sums, (4u, VECTOR). Called with skip
   NULL where no sample is held back, so that the compiler makes a loop without it. */
INLINE void lstm_gates_back(const float *o, const float *y, const float *before, const uint8_t *skip,
                            float *restrict dh, float *restrict dc, float *restrict d,
                            float *restrict sums, int64_t u, int64_t b)
{
    const int64_t n = u * b;
    const float *in = o + n, *f = o + 2 * n, *candidate = o + 3 * n;
    for (int64_t i = 0; i < n; i += b) {
        SIMD for (int64_t j = 0; j < b; j++) {
            const int64_t at = i + j;
            const int held = skip && skip[j];
            const float through = held ? 0.0f : dh[at];
            const float whole = (held ? 0.0f : dc[at]) + through * o[at] * (1.0f - y[at] * y[at]);
            d[at] = through * y[at] * o[at] * (1.0f - o[at]);
            d[at + n] = whole * candidate[at] * in[at] * (1.0f - in[at]);
            d[at + 2 * n] = whole * before[at] * f[at] * (1.0f - f[at]);
            d[at + 3 * n] = whole * in[at] * (1.0f - candidate[at] * candidate[at]);
            dc[at] = held ? dc[at] : whole * f[at];
            dh[at] = held ? dh[at] : 0.0f;
        }
        for (int gate = 0; gate < 4; gate++) {
            vec *sum = (vec *)(sums + (gate * u + i / b) * VECTOR);
            for (int64_t j = 0; j < b; j += VECTOR) *sum += *(vec *)(d + gate * n + i + j);
        }
    }
}

/* weights (rows, 4u), rows so many elements apart; g (steps, u, b) or NULL; dh, dc (u, b): of the
   last states, and then of the first; dz (steps, 4u, b); sums (4u, VECTOR): zeros, to which dz of
   all steps is added; out (steps or 1, rows, b): of what the weights multiply, one for each step if
   rows > u. */
void lstm_backward(const float *weights, const float *z, const float *c, const float *tanh_c,
                   const uint8_t *stale, const float *g, float *restrict dh, float *restrict dc,
                   float *dz, float *sums, float *out, int64_t steps, int64_t u, int64_t b,
                   int64_t rows, int64_t apart, float tiny)
{
    const int64_t n = u * b;
    for (int64_t t = steps - 1; t >= 0; t--) {
        const float *gates = z + 4 * n * t, *y = tanh_c + n * t, *before = c + n * t;
        float *d = dz + 4 * n * t;
        if (g) SIMD for (int64_t i = 0; i < n; i++) dh[i] += g[n * t + i];
        if (stale) lstm_gates_back(gates, y, before, stale + t * b, dh, dc, d, sums, u, b);
        else lstm_gates_back(gates, y, before, 0, dh, dc, d, sums, u, b);
        float *now = rows > u ? out + rows * b * t : out;
        multiply(weights, apart, d, b, now, b, rows, 4 * u, b);
        SIMD for (int64_t i = 0; i < n; i++) dh[i] += now[i];
        if (t % 8 == 0) {
            flush(dh, n, tiny);
            flush(dc, n, tiny);
        }
    }
}

/* GRU with the reset gate after the product. of_x (3u, k - u) with n, z, r; of_h (3u, u + 1) with
   z, r, n; hx (steps + 1, k, b), states, ones, inputs; z (steps, 3u, b); side (steps, u, b): what
   the reset gate multiplies; scratch (3u, b). */
void gru_forward(const float *of_x, const float *of_h, float *hx, float *z, float *side,
                 float *scratch, const uint8_t *stale, int64_t steps, int64_t u, int64_t k, int64_t b)
{
    const int64_t n = u * b;
    for (int64_t t = 0; t < steps; t++, hx += k * b, z += 3 * n, side += n) {
        multiply(of_x, k - u, hx + n, b, z, b, 3 * u, k - u, b);
        multiply(of_h, u + 1, hx, b, scratch, b, 3 * u, u + 1, b);
        float *restrict candidate = z, *restrict keep = z + n, *restrict reset = z + 2 * n;
        float *restrict h = hx + k * b, *restrict inner = side;
        SIMD for (int64_t i = 0; i < n; i++) {
            keep[i] = sigmoid(keep[i] + scratch[i]);
            reset[i] = sigmoid(reset[i] + scratch[i + n]);
            inner[i] = scratch[i + 2 * n];
            candidate[i] = hyperbolic(candidate[i] + reset[i] * inner[i]);
            h[i] = candidate[i] + keep[i] * (hx[i] - candidate[i]);
        }
        if (stale) hold(h, hx, stale + t * b, u, b);
    }
}

/* As lstm_gates_back; d with n, z, r and the recurrent side's n. */
INLINE void gru_gates_back(const float *candidate, const float *inner, const float *h,
                           const uint8_t *skip, float *restrict dh, float *restrict d, int64_t u,
                           int64_t b)
{
    const int64_t n = u * b;
    const float *keep = candidate + n, *reset = candidate + 2 * n;
    for (int64_t i = 0; i < n; i += b)
        SIMD for (int64_t j = 0; j < b; j++) {
            const int64_t at = i + j;
            const int held = skip && skip[j];
            const float through = held ? 0.0f : dh[at], rest = 1.0f - keep[at];
            const float dn = through * (1.0f - candidate[at] * candidate[at]) * rest;
            d[at] = dn;
            d[at + n] = through * (h[at] - candidate[at]) * keep[at] * rest;
            d[at + 3 * n] = dn * reset[at];
            d[at + 2 * n] = dn * reset[at] * (1.0f - reset[at]) * inner[at];
            dh[at] = held ? dh[at] : through * keep[at];
        }
}

/* weights (u, 3u), rows so many elements apart; g (steps, u, b) or NULL; dh (u, b); d (steps, 4u, b)
   as above; scratch (u, b). */
void gru_backward(const float *weights, const float *z, const float *side, const float *hx,
                  const uint8_t *stale, const float *g, float *restrict dh, float *d, float *scratch,
                  int64_t steps, int64_t u, int64_t k, int64_t b, int64_t apart, float tiny)
{
    const int64_t n = u * b;
    for (int64_t t = steps - 1; t >= 0; t--) {
        const float *gates = z + 3 * n * t, *inner = side + n * t, *h = hx + k * b * t;
        float *now = d + 4 * n * t;
        if (g) SIMD for (int64_t i = 0; i < n; i++) dh[i] += g[n * t + i];
        if (stale) gru_gates_back(gates, inner, h, stale + t * b, dh, now, u, b);
        else gru_gates_back(gates, inner, h, 0, dh, now, u, b);
        multiply(weights, apart, now + n, b, scratch, b, u, 3 * u, b);
        SIMD for (int64_t i = 0; i < n; i++) dh[i] += scratch[i];
        if (t % 8 == 0) flush(dh, n, tiny);
    }
}

/* x (steps, k, b), steps so many elements apart, for products over the samples: rows of k side by
   side in whole vectors, out (k / VECTOR, steps, b, VECTOR), with zeros after the last. */
void pack_steps(const float *x, int64_t apart, float *restrict out, int64_t steps, int64_t k, int64_t b)
{
    for (int64_t i = 0; i < k; i += VECTOR)
        for (int64_t t = 0; t < steps; t++, out += b * VECTOR) {
            const float *rows = x + t * apart + i * b;
            if (k - i >= VECTOR)
                for (int64_t j = 0; j < b; j++)
                    UNROLL for (int r = 0; r < VECTOR; r++) out[j * VECTOR + r] = rows[r * b + j];
            else
                for (int64_t j = 0; j < b; j++)
                    for (int64_t r = 0; r < VECTOR; r++)
                        out[j * VECTOR + r] = r < k - i ? rows[r * b + j] : 0.0f;
        }
}

/* out (columns, rows) = x (rows, columns) with its axes exchanged, rows so many elements apart. */
void transpose(const float *x, int64_t x_step, float *restrict out, int64_t out_step, int64_t rows,
               int64_t columns)
{
    for (int64_t i = 0; i < rows; i += VECTOR)
        for (int64_t j = 0; j < columns; j += VECTOR) {
            const float *from = x + i * x_step + j;
            float *to = out + j * out_step + i, square[VECTOR * VECTOR];
            if (rows - i >= VECTOR && columns - j >= VECTOR) {
                for (int c = 0; c < VECTOR; c++)
                    UNROLL for (int r = 0; r < VECTOR; r++) square[c * VECTOR + r] = from[r * x_step + c];
                for (int c = 0; c < VECTOR; c++) *(vec *)(to + c * out_step) = *(vec *)(square + c * VECTOR);
            } else
                for (int c = 0; c < VECTOR && c < columns - j; c++)
                    for (int r = 0; r < VECTOR && r < rows - i; r++) to[c * out_step + r] = from[r * x_step + c];
        }
}
