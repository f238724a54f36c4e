"""Hashes of bytes: the functions that TensorFlow, and so Keras, puts strings into bins with."""

from __future__ import annotations

from collections.abc import Iterable

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
_CROSS, _CROSS_START = 0xC6A4A7935BD1E995, 0xDECAFCAFFE


def fingerprint(data: bytes) -> int:
    """FarmHash's Fingerprint64, a number of 64 bits that never changes.

    Reference: Pike and Alakuijala, 2014, FarmHash, github.com/google/farmhash.
    """
    n = len(data)
    if n <= 16:
        return _up_to_16(data, n)
    multiplier = (_K2 + 2 * n) & _MASK
    if n <= 32:
        a, b = _word(data, 0) * _K1, _word(data, 8)
        c, d = _word(data, n - 8) * multiplier, _word(data, n - 16) * _K2
        return _mixed(*_halves(a, b, c, d, a, multiplier), multiplier)
    if n <= 64:
        a, b = _word(data, 0) * _K2, _word(data, 8)
        c, d = _word(data, n - 8) * multiplier, _word(data, n - 16) * _K2
        y, z = _halves(a, b, c, d, a, multiplier)
        z = _mixed(y, z, multiplier)
        e, f = _word(data, 16) * multiplier, _word(data, 24)
        g = (y + _word(data, n - 32)) * multiplier
        h = (z + _word(data, n - 24)) * multiplier
        first = _turned(e + f, 43) + _turned(g, 30) + h
        return _mixed(first, e + _turned(f + a, 18) + g, multiplier)
    return _long(data, n)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _turned(x: int, right: int) -> int:
    x &= _MASK
    return (x >> right | x << (64 - right)) & _MASK


def _shifted(x: int) -> int:
    x &= _MASK
    return x ^ x >> 47


def _mixed(u: int, v: int, multiplier: int) -> int:
    a = _shifted((u ^ v) * multiplier)
    return _shifted((v ^ a) * multiplier) * multiplier & _MASK


def _halves(a: int, b: int, c: int, d: int, e: int, multiplier: int) -> tuple[int, int]:
    first = _turned(a + b, 43) + _turned(c, 30) + d
    return first & _MASK, (e + _turned(b + _K2, 18) + c) & _MASK


def _up_to_16(data: bytes, n: int) -> int:
    multiplier = (_K2 + 2 * n) & _MASK
    if n >= 8:
        a, b = (_word(data, 0) + _K2) & _MASK, _word(data, n - 8)
        c = _turned(b, 37) * multiplier + a
        d = (_turned(a, 25) + b) * multiplier
        return _mixed(c, d, multiplier)
    if n >= 4:
        first, last = (int.from_bytes(part, "little") for part in (data[:4], data[-4:]))
        return _mixed(n + (first << 3), last, multiplier)
    if n > 0:
        y = data[0] + (data[n >> 1] << 8)
        return _shifted(y * _K2 ^ (n + (data[-1] << 2)) * _K0) * _K2 & _MASK
    return _K2


def _long(data: bytes, n: int) -> int:
    """More than 64 bytes: a state of seven words, stirred by blocks of 64 bytes."""
    x, y = 81, (81 * _K1 + 113) & _MASK
    z = _shifted(y * _K2 + 113) * _K2 & _MASK
    v = w = (0, 0)
    x = (x * _K2 + _word(data, 0)) & _MASK
    for at in range(0, (n - 1) // 64 * 64, 64):
        x = _turned(x + y + v[0] + _word(data, at + 8), 37) * _K1
        y = _turned(y + v[1] + _word(data, at + 48), 42) * _K1
        x ^= w[1]
        y += v[0] + _word(data, at + 40)
        z = _turned(z + w[0], 33) * _K1
        v = _stirred(data, at, v[1] * _K1, x + w[0])
        w = _stirred(data, at + 32, z + w[1], y + _word(data, at + 16))
        x, z = z & _MASK, x & _MASK
        y &= _MASK
    multiplier = (_K1 + ((z & 0xFF) << 1)) & _MASK
    at = n - 64
    w = ((w[0] + ((n - 1) & 63)) & _MASK, w[1])
    v = ((v[0] + w[0]) & _MASK, v[1])
    w = ((w[0] + v[0]) & _MASK, w[1])
    x = _turned(x + y + v[0] + _word(data, at + 8), 37) * multiplier
    y = _turned(y + v[1] + _word(data, at + 48), 42) * multiplier
    x ^= w[1] * 9
    y += v[0] * 9 + _word(data, at + 40)
    z = _turned(z + w[0], 33) * multiplier
    v = _stirred(data, at, v[1] * multiplier, x + w[0])
    w = _stirred(data, at + 32, z + w[1], y + _word(data, at + 16))
    first = _mixed(v[0], w[0], multiplier) + _shifted(y) * _K0 + x
    second = _mixed(v[1], w[1], multiplier) + z
    return _mixed(first & _MASK, second & _MASK, multiplier)


def _stirred(data: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    first, second, third, last = (_word(data, at + i) for i in (0, 8, 16, 24))
    a += first
    b = _turned(b + a + last, 21)
    c = a
    a += second + third
    b += _turned(a, 44)
    return (a + last) & _MASK, (b + c) & _MASK


def siphash(data: bytes, key: tuple[int, int]) -> int:
    """SipHash-2-4 with a key of two numbers of 64 bits.

    Reference: Aumasson and Bernstein, 2012, "SipHash: a fast short-input PRF".
    """
    first, second = (k & _MASK for k in key)
    state = [
        first ^ 0x736F6D6570736575,
        second ^ 0x646F72616E646F6D,
        first ^ 0x6C7967656E657261,
        second ^ 0x7465646279746573,
    ]
    end = len(data) // 8 * 8
    words = [_word(data, at) for at in range(0, end, 8)]
    words.append(int.from_bytes(data[end:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        state[3] ^= word
        _rounds(state, 2)
        state[0] ^= word
    state[2] ^= 0xFF
    _rounds(state, 4)
    return state[0] ^ state[1] ^ state[2] ^ state[3]


def _rounds(state: list[int], times: int) -> None:
    a, b, c, d = state
    for _ in range(times):
        a, c = (a + b) & _MASK, (c + d) & _MASK
        b, d = _turned(b, 51) ^ a, _turned(d, 48) ^ c
        a = _turned(a, 32)
        c, a = (c + b) & _MASK, (a + d) & _MASK
        b, d = _turned(b, 47) ^ c, _turned(d, 43) ^ a
        c = _turned(c, 32)
    state[:] = a, b, c, d


def crossed(numbers: Iterable[int]) -> int:
    """One number out of those of several features, in their order."""
    y = _CROSS_START
    for number in numbers:
        y = (y ^ _CROSS ^ _shifted(number * _CROSS) * _CROSS) & _MASK
        y = _shifted(y * _CROSS) * _CROSS
        y = _shifted(y)
    return y
