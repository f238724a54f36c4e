/* Scaled dot-product attention, one head of one sample after the other, some queries at a time. */

#include "common.h"

/* The arrays of ops/attention_direct.py. Each of the ..._at says how far apart samples, steps and
   heads are (of the mask: samples, heads, queries, keys; 0 where it is repeated).

   heads of the query share as many of key and value; size is a head's, wide that of the values,
   both multiples of VECTOR. Kept for the way back: p (samples, heads, steps, keys), exp of the
   scores, or NULL; inverse (samples, heads, steps), one over the sums of p; y (samples, heads,
   steps, wide), the output; dead, as inverse: who sees no key, NULL without a mask.

   keep: as p, what dropout leaves, times factor; or NULL. at_once: how many queries at a time, so
   that their scores stay in the cache. */
typedef struct {
    const float *query, *key, *value;
    const uint8_t *mask;
    float *p, *inverse, *y;
    uint8_t *dead;
    const uint8_t *keep;
    int64_t query_at[3], key_at[3], value_at[3], mask_at[4];
    int64_t heads, shared, steps, keys, size, wide, zero_masked, at_once;
    float scale, factor;
} Attention;

INLINE int64_t padded(int64_t n) { return (n + VECTOR - 1) / VECTOR * VECTOR; }

/* s = exp(scale * s - the largest) of what is seen, else 0; returns one over the sum. */
INLINE float soften(float *s, const uint8_t *seen, int64_t apart, int64_t n, float scale)
{
    float top = -INFINITY, sum = 0;
    _Pragma("omp simd reduction(max : top)") for (int64_t j = 0; j < n; j++) {
        s[j] = seen && !seen[j * apart] ? -INFINITY : scale * s[j];
        top = s[j] > top ? s[j] : top;
    }
    SIMD_SUM(sum) for (int64_t j = 0; j < n; j++) {
        s[j] = exponential(s[j] - top);
        s[j] = seen && !seen[j * apart] ? 0.0f : s[j];
        sum += s[j];
    }
    return 1.0f / sum;
}

/* p, inverse and dead of some queries: rows of scores from q and the transposed keys. */
static void scores(const Attention *a, int64_t sample, int64_t head, int64_t first, int64_t count,
                   const float *turned, float *p, float *inverse, uint8_t *dead)
{
    const int64_t keys = a->keys, wide = padded(keys);
    const float *q = a->query + sample * a->query_at[0] + first * a->query_at[1] + head * a->query_at[2];
    const Walk walk = ROWS(count, a->query_at[1], keys, a->size);
    convolve(&walk, q, 0, turned, wide, VECTOR, 0, p, keys, 0);
    for (int64_t t = 0; t < count; t++, p += keys) {
        if (!a->mask) {
            inverse[t] = soften(p, 0, 0, keys, a->scale);
            continue;
        }
        const uint8_t *seen = a->mask + sample * a->mask_at[0] + head * a->mask_at[1] +
                              (first + t) * a->mask_at[2];
        const int64_t apart = a->mask_at[3];
        int any = 0;
        for (int64_t j = 0; j < keys; j++) any |= seen[j * apart];
        dead[t] = !any;
        if (any) {
            inverse[t] = apart == 1 ? soften(p, seen, 1, keys, a->scale)
                                    : soften(p, seen, apart, keys, a->scale);
            continue;
        }
        for (int64_t j = 0; j < keys; j++) p[j] = a->zero_masked ? 0.0f : 1.0f;
        inverse[t] = 1.0f / keys;
    }
}

/* p without what dropout takes: in out, or p itself where there is no dropout. */
INLINE const float *dropped(const Attention *a, int64_t first, const float *p, float *out, int64_t count)
{
    if (!a->keep) return p;
    const uint8_t *keep = a->keep + first * a->keys;
    SIMD for (int64_t i = 0; i < count * a->keys; i++) out[i] = keep[i] ? p[i] * a->factor : 0.0f;
    return out;
}

/* out (samples, steps, heads, wide); scratch: size * padded(keys) + 2 * at_once * keys floats; from
   first to stop: the heads of the samples, counted through. */
void attention_forward(const Attention *a, float *out, float *scratch, int64_t first, int64_t stop)
{
    const int64_t steps = a->steps, keys = a->keys, wide = a->wide, some = a->at_once;
    float *turned = scratch, *own = scratch + a->size * padded(keys), *left = own + some * keys;
    for (int64_t pair = first; pair < stop; pair++) {
        const int64_t sample = pair / a->heads, head = pair % a->heads;
        const int64_t of = head / (a->heads / a->shared), at = pair * steps;
        const float *v = a->value + sample * a->value_at[0] + of * a->value_at[2];
        transpose(a->key + sample * a->key_at[0] + of * a->key_at[2], a->key_at[1], turned,
                  padded(keys), keys, a->size);
        for (int64_t t = 0; t < steps; t += some) {
            const int64_t count = steps - t < some ? steps - t : some;
            float *p = a->p ? a->p + (at + t) * keys : own, *inverse = a->inverse + at + t;
            float *y = a->y + (at + t) * wide;
            float *to = out + ((sample * steps + t) * a->heads + head) * wide;
            scores(a, sample, head, t, count, turned, p, inverse, a->dead ? a->dead + at + t : 0);
            const Walk walk = ROWS(count, keys, wide, keys);
            const float *seen = dropped(a, at + t, p, left, count);
            convolve(&walk, seen, 0, v, a->value_at[1], VECTOR, 0, y, wide, 0);
            for (int64_t i = 0; i < count; i++, y += wide, to += a->heads * wide)
                SIMD for (int64_t j = 0; j < wide; j++) to[j] = y[j] *= inverse[i];
        }
    }
}

/* From g (samples, steps, heads, wide) to dquery, dkey and dvalue, samples, steps and heads as in
   g. scratch: (size + wide) * (padded(keys) + keys) + at_once * (3 * keys + wide) floats; from first
   to stop: the heads of key and value. */
void attention_backward(const Attention *a, const float *g, float *dquery, float *dkey, float *dvalue,
                        float *scratch, int64_t first, int64_t stop)
{
    const int64_t steps = a->steps, keys = a->keys, wide = a->wide, size = a->size, some = a->at_once;
    const int64_t group = a->heads / a->shared, long_row = padded(keys);
    float *turned = scratch, *turned_v = turned + size * long_row, *dk = turned_v + wide * long_row;
    float *dv = dk + keys * size, *h = dv + keys * wide, *d = h + some * wide, *own = d + some * keys;
    float *left = own + some * keys;
    for (int64_t pair = first; pair < stop; pair++) {
        const int64_t sample = pair / a->shared, of = pair % a->shared;
        const float *k = a->key + sample * a->key_at[0] + of * a->key_at[2];
        if (!a->p) transpose(k, a->key_at[1], turned, long_row, keys, size);
        transpose(a->value + sample * a->value_at[0] + of * a->value_at[2], a->value_at[1], turned_v,
                  long_row, keys, wide);
        memset(dk, 0, keys * (size + wide) * sizeof(float));
        for (int64_t head = of * group; head < (of + 1) * group; head++) {
            const int64_t at = (sample * a->heads + head) * steps;
            for (int64_t t = 0; t < steps; t += some) {
                const int64_t count = steps - t < some ? steps - t : some;
                const int64_t place = (sample * steps + t) * a->heads + head;
                float *p = a->p ? a->p + (at + t) * keys : own, *inverse = a->inverse + at + t;
                uint8_t *dead = a->dead ? a->dead + at + t : 0;
                if (!a->p) scores(a, sample, head, t, count, turned, p, inverse, dead);
                for (int64_t i = 0; i < count; i++)
                    SIMD for (int64_t j = 0; j < wide; j++)
                        h[i * wide + j] = g[(place + i * a->heads) * wide + j] * inverse[i];
                const Walk to_d = ROWS(count, wide, keys, wide);
                convolve(&to_d, h, 0, turned_v, long_row, VECTOR, 0, d, keys, 0);
                dropped(a, at + t, d, d, count);
                softmax_back(d, p, h, a->y + (at + t) * wide, count, keys, wide, a->scale);
                for (int64_t i = 0; dead && i < count; i++)
                    if (dead[i]) memset(d + i * keys, 0, keys * sizeof(float));
                const Walk to_v = ROWS(count, keys, wide, keys);
                convolve_kernel(&to_v, dropped(a, at + t, p, left, count), 0, h, dv, 0, wide);
                const Walk to_q = ROWS(count, keys, a->heads * size, keys);
                convolve(&to_q, d, 0, k, a->key_at[1], VECTOR, 0, dquery + place * size, size, 0);
                const Walk to_k = ROWS(count, keys, a->query_at[1], keys);
                convolve_kernel(&to_k, d, 0,
                                a->query + sample * a->query_at[0] + t * a->query_at[1] +
                                    head * a->query_at[2],
                                dk, 0, size);
            }
        }
        for (int64_t s = 0; s < keys; s++) {
            const int64_t place = (sample * keys + s) * a->shared + of;
            memcpy(dkey + place * size, dk + s * size, size * sizeof(float));
            memcpy(dvalue + place * wide, dv + s * wide, wide * sizeof(float));
        }
    }
}
