"""Write keras_ops.h5: what keras.ops computes for the calls in tests/keras_cases.py.

Run from the repository's root with a Python that has keras, jax and h5py:

    KERAS_BACKEND=jax JAX_ENABLE_X64=1 python -m tests.golden.make_keras_ops
"""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np

from tests.keras_cases import CASES


def leaves(structure):
    if isinstance(structure, (list, tuple)):
        return [leaf for part in structure for leaf in leaves(part)]
    return [np.asarray(structure)]


def main():
    import keras

    keras.config.set_floatx("float64")
    with h5py.File(Path(__file__).with_name("keras_ops.h5"), "w") as file:
        file.attrs["versions"] = f"keras {keras.__version__}, {keras.backend.backend()}"
        for i, (name, args, kwargs) in enumerate(CASES):
            function = keras.ops
            for part in name.split("."):
                function = getattr(function, part)
            for j, leaf in enumerate(leaves(function(*args, **kwargs))):
                file[f"{i:03d}/{j}"] = leaf


if __name__ == "__main__":
    main()
