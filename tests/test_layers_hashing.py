"""Hashes are those of TensorFlow 2.21 and bins those of Keras; the numbers come from there."""

import numpy as np
import pytest

from picodl import layers
from picodl.layers import hashes

TEXT = b"the quick brown fox jumps over the lazy dog, " * 5
LETTERS = np.array(["A", "B", "C", "D", "E"])
NUMBERS = np.array([1, -2, 3, 4, 5])
FINGERPRINTS = {
    0: 1936946117179621456, 1: 6958822807653381721, 3: 7003889267569045354,
    4: 1001158104500252861, 7: 6384219026912886920, 8: 8201305380226119935,
    16: 6052272862424356134, 17: 2098926860416782726, 32: 8819998799441320144,
    33: 6107800517923693518, 64: 3040883424776581002, 65: 3102768310983548734,
    128: 6669352553061224213, 129: 3489281834142536958, 200: 6624579401994527048,
}  # fmt: skip
KEYED = {
    0: 4928313950774450900, 1: 8992772881339145011, 7: 8835757096322648624,
    8: 4815990459910941879, 9: 4497291238688309080, 64: 6769778408612192775,
}  # fmt: skip


def test_hashes_of_bytes_of_all_lengths():
    largest = 2**63 - 1
    assert {n: hashes.fingerprint(TEXT[:n]) % largest for n in FINGERPRINTS} == FINGERPRINTS
    assert {n: hashes.siphash(TEXT[:n], (133, 137)) % largest for n in KEYED} == KEYED


@pytest.mark.parametrize(
    ("options", "bins"),
    [
        ({}, [3, 6, 1, 4, 1]),
        ({"mask_value": "C"}, [5, 1, 0, 2, 3]),
        ({"salt": 133}, [4, 5, 4, 0, 3]),
        ({"salt": [133, 137]}, [4, 3, 3, 3, 0]),
        ({"mask_value": "C", "salt": 1}, [4, 5, 0, 5, 4]),
    ],
)
def test_bins_of_strings(options, bins):
    assert layers.Hashing(7, **options)(LETTERS).numpy().tolist() == bins


def test_bins_of_integers():
    assert layers.Hashing(11)(np.array([0, -5, 12345678901])).numpy().tolist() == [2, 5, 2]


def test_bins_of_crossings():
    layer = layers.HashedCrossing(11)
    assert layer([LETTERS, NUMBERS]).numpy().tolist() == [0, 10, 7, 7, 10]
    assert layer([LETTERS, LETTERS[::-1], NUMBERS]).numpy().tolist() == [0, 8, 7, 9, 2]
    assert layer([LETTERS[:, None], NUMBERS[:, None]]).shape == (5, 1)


def test_numbers_of_unknown_tokens():
    unknown = {"num_oov_indices": 3}
    strings, integers = layers.StringLookup, layers.IntegerLookup
    assert strings(vocabulary=["v"], **unknown)(LETTERS).numpy().tolist() == [1, 0, 1, 1, 2]
    salted = strings(vocabulary=["v"], salt=5, **unknown)
    assert salted(LETTERS).numpy().tolist() == [1, 0, 1, 2, 2]
    ids = np.array([7, 8, 9, 10])
    for options, expected in (
        ({}, [1, 2, 0, 1]),
        ({"oov_method": "farmhash"}, [1, 1, 2, 2]),
        ({"oov_method": "farmhash", "salt": [3, 4]}, [1, 2, 2, 2]),
    ):
        layer = integers(vocabulary=[1], **unknown, **options)
        assert integers.from_config(layer.get_config())(ids).numpy().tolist() == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layers.Hashing(3, salt="s"), "salt must be an integer or a pair"),
        (lambda: layers.Hashing(3, salt=[1]), "salt must be an integer or a pair"),
        (lambda: layers.StringLookup(salt=1.5), "salt must be an integer or a pair"),
        (lambda: layers.IntegerLookup(salt=1), 'salt goes with oov_method="farmhash" only'),
        (lambda: layers.HashedCrossing(3)([LETTERS, NUMBERS * 1.0]), "integers or strings"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
