"""The C99 functions that exported networks call, one layer each; a file gets those it uses.

`TYPE` stands for the type of the weights, float or int8_t, and `NAME` for the matching suffix: with
8-bit weights every output has a scale, which the sum is multiplied with before the bias is added.
"""

from __future__ import annotations

_SUM = """\
static float finish_NAME(float sum, const float *scale, const float *b, int j) {
    if (scale) sum *= scale[j];
    return b ? sum + b[j] : sum;
}
"""

_DENSE = """\
/* y (rows, m) = x (rows, n) . w (n, m) + b */
static void dense_NAME(const float *x, int rows, int n, int m, const TYPE *w, const float *scale,
                       const float *b, float *y) {
    for (int r = 0; r < rows; r++, x += n, y += m) {
        for (int j = 0; j < m; j++) y[j] = 0.0f;
        for (int i = 0; i < n; i++)
            for (int j = 0; j < m; j++) y[j] += x[i] * (float)w[i * m + j];
        for (int j = 0; j < m; j++) y[j] = finish_NAME(y[j], scale, b, j);
    }
}
"""

_CONV = """\
/* x (h, width, c) with w (kh, kw, c / groups, f) -> y (oh, ow, f) */
static void conv_NAME(const float *x, int h, int width, int c, const TYPE *w, const float *scale,
                      const float *b, int kh, int kw, int f, int sh, int sw, int top, int left,
                      int dh, int dw, int groups, float *y, int oh, int ow) {
    const int part = c / groups, share = f / groups;
    for (int p = 0; p < oh; p++)
        for (int q = 0; q < ow; q++, y += f) {
            for (int j = 0; j < f; j++) y[j] = 0.0f;
            for (int u = 0; u < kh; u++) {
                const int row = p * sh + u * dh - top;
                if (row < 0 || row >= h) continue;
                for (int v = 0; v < kw; v++) {
                    const int col = q * sw + v * dw - left;
                    if (col < 0 || col >= width) continue;
                    const float *a = x + (row * width + col) * c;
                    const TYPE *k = w + (u * kw + v) * part * f;
                    for (int g = 0; g < groups; g++)
                        for (int i = 0; i < part; i++)
                            for (int j = g * share; j < (g + 1) * share; j++)
                                y[j] += a[g * part + i] * (float)k[i * f + j];
                }
            }
            for (int j = 0; j < f; j++) y[j] = finish_NAME(y[j], scale, b, j);
        }
}
"""

_DEPTHWISE = """\
/* x (h, width, c) with w (kh, kw, c, m) -> y (oh, ow, c * m) */
static void depthwise_NAME(const float *x, int h, int width, int c, const TYPE *w,
                           const float *scale, const float *b, int kh, int kw, int m, int sh,
                           int sw, int top, int left, int dh, int dw, float *y, int oh, int ow) {
    for (int p = 0; p < oh; p++)
        for (int q = 0; q < ow; q++, y += c * m) {
            for (int j = 0; j < c * m; j++) y[j] = 0.0f;
            for (int u = 0; u < kh; u++) {
                const int row = p * sh + u * dh - top;
                if (row < 0 || row >= h) continue;
                for (int v = 0; v < kw; v++) {
                    const int col = q * sw + v * dw - left;
                    if (col < 0 || col >= width) continue;
                    const float *a = x + (row * width + col) * c;
                    const TYPE *k = w + (u * kw + v) * c * m;
                    for (int j = 0; j < c * m; j++) y[j] += a[j / m] * (float)k[j];
                }
            }
            for (int j = 0; j < c * m; j++) y[j] = finish_NAME(y[j], scale, b, j);
        }
}
"""

_CONV_TRANSPOSE = """\
/* x (h, width, c) with w (kh, kw, f, c): each pixel writes its kernel into y (oh, ow, f) */
static void conv_transpose(const float *x, int h, int width, int c, const float *w,
                           const float *b, int kh, int kw, int f, int sh, int sw, int top,
                           int left, int dh, int dw, float *y, int oh, int ow) {
    for (int j = 0; j < oh * ow * f; j++) y[j] = b ? b[j % f] : 0.0f;
    for (int p = 0; p < h; p++)
        for (int q = 0; q < width; q++, x += c)
            for (int u = 0; u < kh; u++) {
                const int row = p * sh + u * dh - top;
                if (row < 0 || row >= oh) continue;
                for (int v = 0; v < kw; v++) {
                    const int col = q * sw + v * dw - left;
                    if (col < 0 || col >= ow) continue;
                    const float *k = w + (u * kw + v) * f * c;
                    float *out = y + (row * ow + col) * f;
                    for (int j = 0; j < f; j++)
                        for (int i = 0; i < c; i++) out[j] += x[i] * k[j * c + i];
                }
            }
}
"""

_EMBEDDING = """\
/* rows of w (n, m) by their numbers; 1 for a number outside of the table */
static int embedding_NAME(const float *ids, int count, const TYPE *w, const float *scale, int n,
                          int m, float *y) {
    for (int i = 0; i < count; i++, y += m) {
        const int id = (int)ids[i];
        if (!(ids[i] >= 0.0f) || id >= n) return 1;
        for (int j = 0; j < m; j++) y[j] = finish_NAME((float)w[id * m + j], scale, 0, j);
    }
    return 0;
}
"""

_SIMPLE_RNN = """\
/* x (steps, n): work holds h (m), z (m), zr (m) */
static void simple_rnn_NAME(const float *x, int steps, int n, int m, const TYPE *w,
                            const float *ws, const TYPE *r, const float *rs, const float *b,
                            float (*act)(float), int backwards, int all, float *work, float *y) {
    float *h = work, *z = h + m, *zr = z + m;
    for (int j = 0; j < m; j++) h[j] = 0.0f;
    for (int t = 0; t < steps; t++) {
        dense_NAME(x + (backwards ? steps - 1 - t : t) * n, 1, n, m, w, ws, b, z);
        dense_NAME(h, 1, m, m, r, rs, 0, zr);
        for (int j = 0; j < m; j++) {
            h[j] = act(z[j] + zr[j]);
            if (all) y[t * m + j] = h[j];
        }
    }
    for (int j = 0; !all && j < m; j++) y[j] = h[j];
}
"""

_LSTM = """\
/* x (steps, n), gates in, forget, cell, out: work holds h (m), c (m), z (4 m), zr (4 m) */
static void lstm_NAME(const float *x, int steps, int n, int m, const TYPE *w, const float *ws,
                      const TYPE *r, const float *rs, const float *b, float (*act)(float),
                      float (*gate)(float), int backwards, int all, float *work, float *y) {
    float *h = work, *c = h + m, *z = c + m, *zr = z + 4 * m;
    for (int j = 0; j < 2 * m; j++) h[j] = 0.0f;
    for (int t = 0; t < steps; t++) {
        dense_NAME(x + (backwards ? steps - 1 - t : t) * n, 1, n, 4 * m, w, ws, b, z);
        dense_NAME(h, 1, m, 4 * m, r, rs, 0, zr);
        for (int j = 0; j < 4 * m; j++) z[j] += zr[j];
        for (int j = 0; j < m; j++) {
            c[j] = gate(z[m + j]) * c[j] + gate(z[j]) * act(z[2 * m + j]);
            h[j] = gate(z[3 * m + j]) * act(c[j]);
            if (all) y[t * m + j] = h[j];
        }
    }
    for (int j = 0; !all && j < m; j++) y[j] = h[j];
}
"""

_GRU = """\
/* x (steps, n), gates update, reset, new: work holds h (m), z (3 m), zr (3 m); rb is the bias of
   the recurrent product, after which (1) or before which (0) the reset gate is applied */
static void gru_NAME(const float *x, int steps, int n, int m, const TYPE *w, const float *ws,
                     const TYPE *r, const float *rs, const float *b, const float *rb, int after,
                     float (*act)(float), float (*gate)(float), int backwards, int all,
                     float *work, float *y) {
    float *h = work, *z = h + m, *zr = z + 3 * m;
    for (int j = 0; j < m; j++) h[j] = 0.0f;
    for (int t = 0; t < steps; t++) {
        dense_NAME(x + (backwards ? steps - 1 - t : t) * n, 1, n, 3 * m, w, ws, b, z);
        dense_NAME(h, 1, m, 3 * m, r, rs, rb, zr);
        for (int j = 0; j < 2 * m; j++) z[j] = gate(z[j] + zr[j]);
        for (int j = 0; j < m; j++) {
            if (after) {
                zr[j] = zr[2 * m + j] * z[m + j];
                continue;
            }
            zr[j] = 0.0f;
            for (int i = 0; i < m; i++)
                zr[j] += z[m + i] * h[i] * (float)r[i * 3 * m + 2 * m + j];
            zr[j] = finish_NAME(zr[j], rs ? rs + 2 * m : 0, 0, j);
        }
        for (int j = 0; j < m; j++) {
            h[j] = z[j] * h[j] + (1.0f - z[j]) * act(z[2 * m + j] + zr[j]);
            if (all) y[t * m + j] = h[j];
        }
    }
    for (int j = 0; !all && j < m; j++) y[j] = h[j];
}
"""

_MAX_POOL = """\
static void max_pool(const float *x, int h, int width, int c, int kh, int kw, int sh, int sw,
                     int top, int left, float *y, int oh, int ow) {
    for (int p = 0; p < oh; p++)
        for (int q = 0; q < ow; q++, y += c) {
            for (int j = 0; j < c; j++) y[j] = -INFINITY;
            for (int u = 0; u < kh; u++)
                for (int v = 0; v < kw; v++) {
                    const int row = p * sh + u - top, col = q * sw + v - left;
                    if (row < 0 || row >= h || col < 0 || col >= width) continue;
                    const float *a = x + (row * width + col) * c;
                    for (int j = 0; j < c; j++)
                        if (a[j] > y[j]) y[j] = a[j];
                }
        }
}
"""

_AVERAGE_POOL = """\
/* places outside of x do not count */
static void average_pool(const float *x, int h, int width, int c, int kh, int kw, int sh, int sw,
                         int top, int left, float *y, int oh, int ow) {
    for (int p = 0; p < oh; p++)
        for (int q = 0; q < ow; q++, y += c) {
            int count = 0;
            for (int j = 0; j < c; j++) y[j] = 0.0f;
            for (int u = 0; u < kh; u++)
                for (int v = 0; v < kw; v++) {
                    const int row = p * sh + u - top, col = q * sw + v - left;
                    if (row < 0 || row >= h || col < 0 || col >= width) continue;
                    const float *a = x + (row * width + col) * c;
                    for (int j = 0; j < c; j++) y[j] += a[j];
                    count++;
                }
            for (int j = 0; j < c; j++) y[j] /= (float)count;
        }
}
"""

_GATHER = """\
/* y (oh, ow, c): x moved by (top, left), every pixel repeated (rh, rw) times, 0 outside */
static void spread(const float *x, int h, int width, int c, int rh, int rw, int top, int left,
                   float *y, int oh, int ow) {
    for (int p = 0; p < oh; p++)
        for (int q = 0; q < ow; q++, y += c) {
            const int in = p >= top && q >= left && (p - top) / rh < h && (q - left) / rw < width;
            const float *a = in ? x + ((p - top) / rh * width + (q - left) / rw) * c : x;
            for (int j = 0; j < c; j++) y[j] = in ? a[j] : 0.0f;
        }
}
"""

_SCALE_SHIFT = """\
/* y = x * scale + shift for each of c channels */
static void scale_shift(const float *x, int rows, int c, const float *scale, const float *shift,
                        float *y) {
    for (int r = 0; r < rows; r++, x += c, y += c)
        for (int j = 0; j < c; j++) y[j] = x[j] * scale[j] + shift[j];
}
"""

_NORMALIZE = """\
/* over each sample's rows of c numbers, in groups of channels; rows = 1 for the last axis alone;
   without center by the root mean square */
static void normalize(const float *x, int times, int rows, int c, int groups, int center,
                      const float *gamma, const float *beta, float epsilon, float *y) {
    const int part = c / groups;
    for (int t = 0; t < times; t++, x += rows * c, y += rows * c)
        for (int g = 0; g < c; g += part) {
            float mean = 0.0f, square = 0.0f;
            for (int r = 0; center && r < rows; r++)
                for (int j = g; j < g + part; j++) mean += x[r * c + j];
            mean /= (float)(rows * part);
            for (int r = 0; r < rows; r++)
                for (int j = g; j < g + part; j++) {
                    const float d = x[r * c + j] - mean;
                    square += d * d;
                }
            const float factor = 1.0f / sqrtf(square / (float)(rows * part) + epsilon);
            for (int r = 0; r < rows; r++)
                for (int j = g; j < g + part; j++) {
                    float v = (x[r * c + j] - mean) * factor;
                    if (gamma) v *= gamma[j];
                    y[r * c + j] = beta ? v + beta[j] : v;
                }
        }
}
"""

_APPLY = """\
static void apply(float (*f)(float), const float *x, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] = f(x[i]);
}
"""

_LEAKY = """\
/* x for x > 0, else slope * x; one slope for each of c channels, or one for all */
static void leaky(const float *x, int rows, int c, const float *slope, int each, float *y) {
    for (int r = 0; r < rows; r++, x += c, y += c)
        for (int j = 0; j < c; j++) y[j] = x[j] > 0.0f ? x[j] : slope[each ? j : 0] * x[j];
}
"""

_CLAMPED_RELU = """\
/* slope * (x - threshold) below the threshold, at most limit */
static void clamped_relu(const float *x, int n, float slope, float threshold, float limit,
                         float *y) {
    for (int i = 0; i < n; i++) {
        const float v = x[i] >= threshold ? x[i] : slope * (x[i] - threshold);
        y[i] = v < limit ? v : limit;
    }
}
"""

_SCALED_ELU = """\
static void scaled_elu(const float *x, int n, float alpha, float *y) {
    for (int i = 0; i < n; i++) y[i] = x[i] > 0.0f ? x[i] : alpha * expm1f(x[i]);
}
"""

_SOFTMAX = """\
static void softmax(const float *x, int rows, int c, float *y) {
    for (int r = 0; r < rows; r++, x += c, y += c) {
        float top = x[0], sum = 0.0f;
        for (int j = 1; j < c; j++)
            if (x[j] > top) top = x[j];
        for (int j = 0; j < c; j++) sum += y[j] = expf(x[j] - top);
        for (int j = 0; j < c; j++) y[j] /= sum;
    }
}
"""

_LOG_SOFTMAX = """\
static void log_softmax(const float *x, int rows, int c, float *y) {
    for (int r = 0; r < rows; r++, x += c, y += c) {
        float top = x[0], sum = 0.0f;
        for (int j = 1; j < c; j++)
            if (x[j] > top) top = x[j];
        for (int j = 0; j < c; j++) sum += expf(x[j] - top);
        for (int j = 0; j < c; j++) y[j] = x[j] - top - logf(sum);
    }
}
"""

_JOIN = """\
/* part of a concatenation: rows of n numbers into rows of all numbers */
static void join(const float *x, int rows, int n, int all, float *y) {
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) y[r * all + i] = x[r * n + i];
}
"""

_PERMUTE = """\
/* transpose of up to 4 axes: the sizes of y, and the stride in x of each of its axes */
static void permute(const float *x, const int *size, const int *stride, float *y) {
    for (int a = 0; a < size[0]; a++)
        for (int b = 0; b < size[1]; b++)
            for (int c = 0; c < size[2]; c++)
                for (int d = 0; d < size[3]; d++)
                    *y++ = x[a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3]];
}
"""

_MERGES = {
    "add": "a[i] + b[i]",
    "subtract": "a[i] - b[i]",
    "multiply": "a[i] * b[i]",
    "divide": "a[i] / b[i]",
    "maximum": "a[i] > b[i] ? a[i] : b[i]",
    "minimum": "a[i] < b[i] ? a[i] : b[i]",
}

_SCALARS = {
    "relu": "x > 0.0f ? x : 0.0f",
    "relu6": "x > 6.0f ? 6.0f : x > 0.0f ? x : 0.0f",
    "linear": "x",
    "sigmoid": "1.0f / (1.0f + expf(-x))",
    "tanh": "tanhf(x)",
    "elu": "x > 0.0f ? x : expm1f(x)",
    "celu": "x > 0.0f ? x : expm1f(x)",
    "selu": "1.05070098735548f * (x > 0.0f ? x : 1.67326324235438f * expm1f(x))",
    "gelu": "0.5f * x * (1.0f + erff(0.70710678118655f * x))",
    "gelu_tanh": "0.5f * x * (1.0f + tanhf(0.79788456080287f * (x + 0.044715f * x * x * x)))",
    "silu": "x / (1.0f + expf(-x))",
    "softplus": "(x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)))",
    "softsign": "x / (1.0f + fabsf(x))",
    "exponential": "expf(x)",
    "hard_sigmoid": "x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : x / 6.0f + 0.5f",
    "hard_silu": "x <= -3.0f ? 0.0f : x >= 3.0f ? x : x * (x / 6.0f + 0.5f)",
    "leaky_relu": "x > 0.0f ? x : 0.2f * x",
    "mish": "x * tanhf((x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))))",
}

_TYPED = {
    "sum": (_SUM, ()),
    "dense": (_DENSE, ("sum",)),
    "conv": (_CONV, ("sum",)),
    "depthwise": (_DEPTHWISE, ("sum",)),
    "embedding": (_EMBEDDING, ("sum",)),
    "simple_rnn": (_SIMPLE_RNN, ("sum", "dense")),
    "lstm": (_LSTM, ("sum", "dense")),
    "gru": (_GRU, ("sum", "dense")),
}

_PLAIN = {
    "conv_transpose": _CONV_TRANSPOSE,
    "max_pool": _MAX_POOL,
    "average_pool": _AVERAGE_POOL,
    "spread": _GATHER,
    "scale_shift": _SCALE_SHIFT,
    "normalize": _NORMALIZE,
    "apply": _APPLY,
    "leaky": _LEAKY,
    "clamped_relu": _CLAMPED_RELU,
    "scaled_elu": _SCALED_ELU,
    "softmax": _SOFTMAX,
    "log_softmax": _LOG_SOFTMAX,
    "join": _JOIN,
    "permute": _PERMUTE,
}

SCALARS = frozenset(_SCALARS)
MERGES = frozenset(_MERGES)


def source(used: set[str]) -> str:
    """The text of the functions with these names, in an order in which C can read them.

    Typed names end in _f32 or _i8, activations start with f_, merges with merge_.
    """
    wanted = set(used)
    for name in used:
        base, _, suffix = name.rpartition("_")
        if base in _TYPED:
            wanted |= {f"{need}_{suffix}" for need in _TYPED[base][1]}
    parts = [
        f"static float f_{name}(float x) {{\n    return {formula};\n}}\n"
        for name, formula in _SCALARS.items()
        if f"f_{name}" in wanted
    ]
    parts += [text for name, text in _PLAIN.items() if name in wanted]
    parts += [
        f"static void merge_{name}(const float *a, const float *b, int n, float *y) {{\n"
        f"    for (int i = 0; i < n; i++) y[i] = {formula};\n}}\n"
        for name, formula in _MERGES.items()
        if f"merge_{name}" in wanted
    ]
    for suffix, c_type in (("f32", "float"), ("i8", "int8_t")):
        parts += [
            text.replace("NAME", suffix).replace("TYPE", c_type)
            for name, (text, _) in _TYPED.items()
            if f"{name}_{suffix}" in wanted
        ]
    return "\n".join(parts)
