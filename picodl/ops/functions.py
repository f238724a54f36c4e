"""Functions of one variable, one entry each: name, function, slope, and both in words.

The slopes are written with numpy functions, so that they work on arrays and, for second
derivatives, on Tensors; y is the function's value. See `elementwise.unary`.
"""

from __future__ import annotations

import math

import numpy as np

from picodl.ops.elementwise import unary

_LN2, _LN10 = math.log(2), math.log(10)

sqrt = unary("sqrt", np.sqrt, lambda x, y: 0.5 / y, "Square root", "1 / (2 y)", True)
rsqrt = unary(
    "rsqrt",
    lambda a: 1 / np.sqrt(a),
    lambda x, y: -0.5 * (y * y * y),
    "1 / sqrt(x)",
    "-y^3 / 2",
    True,
)
cbrt = unary("cbrt", np.cbrt, lambda x, y: 1 / (3 * y * y), "Cube root", "1 / (3 y^2)", True)
reciprocal = unary("reciprocal", lambda a: 1 / a, lambda x, y: -y * y, "1 / x", "-y^2", True)
exp = unary("exp", np.exp, lambda x, y: y, "e to the power x", "y", True)
exp2 = unary("exp2", np.exp2, lambda x, y: _LN2 * y, "2 to the power x", "log(2) y", True)
expm1 = unary("expm1", np.expm1, lambda x, y: y + 1, "exp(x) - 1, exact near 0", "(y + 1)", True)
log = unary("log", np.log, lambda x, y: 1 / x, "Natural logarithm", "1 / x", True)
log2 = unary(
    "log2", np.log2, lambda x, y: 1 / (_LN2 * x), "Logarithm to base 2", "1 / (x log(2))", True
)
log10 = unary(
    "log10", np.log10, lambda x, y: 1 / (_LN10 * x), "Logarithm to base 10", "1 / (x log(10))", True
)
log1p = unary(
    "log1p", np.log1p, lambda x, y: 1 / (1 + x), "log(1 + x), exact near 0", "1 / (1 + x)", True
)
sin = unary("sin", np.sin, lambda x, y: np.cos(x), "Sine", "cos(x)")
cos = unary("cos", np.cos, lambda x, y: -np.sin(x), "Cosine", "-sin(x)")
tan = unary("tan", np.tan, lambda x, y: 1 + y * y, "Tangent", "(1 + y^2)")
arcsin = unary(
    "arcsin",
    np.arcsin,
    lambda x, y: 1 / np.sqrt(1 - x * x),
    "Inverse sine",
    "1 / sqrt(1 - x^2)",
    True,
)
arccos = unary(
    "arccos",
    np.arccos,
    lambda x, y: -1 / np.sqrt(1 - x * x),
    "Inverse cosine",
    "-1 / sqrt(1 - x^2)",
    True,
)
arctan = unary(
    "arctan", np.arctan, lambda x, y: 1 / (1 + x * x), "Inverse tangent", "1 / (1 + x^2)"
)
sinh = unary("sinh", np.sinh, lambda x, y: np.cosh(x), "Hyperbolic sine", "cosh(x)", True)
cosh = unary("cosh", np.cosh, lambda x, y: np.sinh(x), "Hyperbolic cosine", "sinh(x)", True)
tanh = unary("tanh", np.tanh, lambda x, y: 1 - y * y, "Hyperbolic tangent", "(1 - y^2)")
arcsinh = unary(
    "arcsinh",
    np.arcsinh,
    lambda x, y: 1 / np.sqrt(x * x + 1),
    "Inverse of sinh",
    "1 / sqrt(x^2 + 1)",
)
arccosh = unary(
    "arccosh",
    np.arccosh,
    lambda x, y: 1 / np.sqrt((x - 1) * (x + 1)),
    "Inverse of cosh",
    "1 / sqrt(x^2 - 1)",
    True,
)
arctanh = unary(
    "arctanh", np.arctanh, lambda x, y: 1 / (1 - x * x), "Inverse of tanh", "1 / (1 - x^2)", True
)
deg2rad = unary("deg2rad", np.deg2rad, lambda x, y: math.pi / 180, "Degrees in radians", "pi / 180")
rad2deg = unary("rad2deg", np.rad2deg, lambda x, y: 180 / math.pi, "Radians in degrees", "180 / pi")

radians, degrees = deg2rad, rad2deg
