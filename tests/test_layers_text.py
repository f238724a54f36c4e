"""Tokens, categories and windows over data."""

import json

import numpy as np
import pytest

import picodl
from picodl import layers, preprocessing, utils
from picodl.layers import lookup
from picodl.tensor import Tensor


def test_string_lookup_numbers_and_back():
    layer = layers.StringLookup(mask_token="")
    layer.adapt([["b", "a", "b"], ["c", "", "b"]])
    assert layer.get_vocabulary() == ["", "[UNK]", "b", "c", "a"]
    ids = layer(np.array([["b", "zz"], ["", "a"]])).numpy()
    assert ids.tolist() == [[2, 1], [0, 4]] and ids.dtype == np.int64
    back = layers.StringLookup(mask_token="", vocabulary=layer.get_vocabulary(), invert=True)
    assert back(ids).tolist() == [["b", "[UNK]"], ["", "a"]]
    several = layers.StringLookup(num_oov_indices=3, vocabulary=["a"])
    assert several(["a"]).numpy().tolist() == [3]
    assert 0 <= several(["other"]).numpy()[0] < 3
    with pytest.raises(ValueError, match="does not know 'x'"):
        layers.StringLookup(num_oov_indices=0, vocabulary=["a"])(["x"])


def test_output_modes_of_lookups():
    words = np.array([["a", "a", "b"], ["c", "b", "zz"]])

    def make(mode, **more):
        return layers.StringLookup(vocabulary=["a", "b", "c"], output_mode=mode, **more)

    assert make("multi_hot")(words).numpy().tolist() == [[0, 1, 1, 0], [1, 0, 1, 1]]
    assert make("count")(words).numpy().tolist() == [[0, 2, 1, 0], [1, 0, 1, 1]]
    assert make("one_hot")(words).shape == (2, 3, 4)
    assert make("count", max_tokens=6, pad_to_max_tokens=True)(words).shape == (2, 6)
    tf_idf = make("tf_idf", idf_weights=[1.0, 2.0, 3.0])
    np.testing.assert_allclose(tf_idf(words).numpy(), [[0, 2, 2, 0], [2, 0, 2, 3]])
    adapted = layers.StringLookup(output_mode="tf_idf")
    adapted.adapt(words)
    assert adapted.get_vocabulary()[:2] == ["[UNK]", "b"]


def test_integer_lookup():
    layer = layers.IntegerLookup(mask_token=0)
    layer.adapt(np.array([[7, 7, 9], [0, 7, 9]]))
    assert layer.get_vocabulary() == [0, -1, 7, 9]
    assert layer(np.array([0, 9, 5])).numpy().tolist() == [0, 3, 1]


def test_text_vectorization_cuts_pads_and_counts():
    texts = ["The cat, the dog!", "A cat."]
    layer = layers.TextVectorization(output_sequence_length=3)
    layer.adapt(texts)
    assert layer.get_vocabulary() == ["", "[UNK]", "the", "cat", "dog", "a"]
    assert layer(texts).numpy().tolist() == [[2, 3, 2], [5, 3, 0]]
    assert layer("The bird").numpy().tolist() == [2, 1, 0]
    pairs = layers.TextVectorization(ngrams=2, output_mode="count")
    pairs.adapt(texts)
    assert "the cat" in pairs.get_vocabulary()
    letters = layers.TextVectorization(standardize=None, split="character")
    letters.adapt(["abba"])
    assert letters(np.array([["ab"]])).numpy().tolist() == [[3, 2]]


@pytest.mark.parametrize(
    "layer",
    [
        layers.StringLookup(vocabulary=["x", "y"], mask_token=""),
        layers.IntegerLookup(vocabulary=[5, 6]),
        layers.TextVectorization(vocabulary=["x", "y"], output_sequence_length=4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_vocabularies_come_back_with_the_config(layer):
    again = type(layer).from_config(layer.get_config())
    assert again.get_vocabulary() == layer.get_vocabulary()
    with pytest.raises(ValueError, match=r"names the file '/etc/passwd'"):
        type(layer).from_config({**layer.get_config(), "vocabulary": "/etc/passwd"})


def test_vocabularies_are_checked():
    with pytest.raises(ValueError, match="holds 'a' more than once"):
        layers.StringLookup(vocabulary=["a", "a"])
    with pytest.raises(ValueError, match="more than max_tokens=2"):
        layers.StringLookup(max_tokens=2, vocabulary=["a", "b"])
    with pytest.raises(ValueError, match="output_mode must be one of"):
        layers.StringLookup(output_mode="onehot")
    assert not list(layers.StringLookup(vocabulary=["a"]).parts())
    assert isinstance(layers.StringLookup()._known, lookup.Vocabulary)


def test_hashes_are_stable_and_in_range():
    layer = layers.Hashing(5, mask_value="")
    ids = layer(np.array(["a", "b", "", "a"])).numpy()
    assert ids[2] == 0 and ids[0] == ids[3] and ((ids[[0, 1]] > 0) & (ids[[0, 1]] < 5)).all()
    assert (
        layers.Hashing(1000)([1, 2]).numpy().tolist()
        == layers.Hashing(1000)([1, 2]).numpy().tolist()
    )
    crossed = layers.HashedCrossing(7)
    ids = crossed([np.array(["a", "b"]), np.array([1, 2])]).numpy()
    assert ids.shape == (2,) and ids.max() < 7


def test_categories_outside_the_range_are_refused():
    for bad in ([4], [-1]):
        with pytest.raises(ValueError, match=rf"numbers from 0 to 3, but received {bad[0]}"):
            layers.CategoryEncoding(4)(np.array([bad]))


def test_adapted_bins_come_back_with_the_config():
    layer = layers.Discretization(num_bins=3)
    layer.adapt(np.arange(300.0))
    again = layers.Discretization.from_config(layer.get_config())
    data = np.array([[10.0, 150.0, 290.0]])
    assert again(data).numpy().tolist() == layer(data).numpy().tolist() == [[0, 1, 2]]


def test_character_tokenizer_there_and_back():
    text = "to be, or not to be: ä\n"
    tokenizer = preprocessing.CharacterTokenizer(text)
    assert tokenizer.vocabulary == "".join(sorted(set(text))) and len(tokenizer) == 11
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64 and ids.shape == (len(text),)
    assert tokenizer.decode(ids) == tokenizer.decode(ids.tolist()) == text
    assert tokenizer.decode(picodl.ops.convert_to_tensor(ids)) == text
    assert tokenizer.encode("").shape == (0,) and tokenizer.decode([]) == ""
    assert repr(tokenizer) == "<CharacterTokenizer of 11 characters>"
    assert preprocessing.CharacterTokenizer(["ab", "ca"]).vocabulary == "abc"
    assert utils.CharacterTokenizer is preprocessing.CharacterTokenizer


@pytest.mark.parametrize(
    "options", [{}, {"unknown": "?"}, {"sort": False}, {"unknown": "b", "sort": False}]
)
def test_character_tokenizer_from_its_config(options):
    tokenizer = preprocessing.CharacterTokenizer("cabbä", **options)
    config = json.loads(json.dumps(tokenizer.get_config()))
    again = preprocessing.CharacterTokenizer.from_config(config)
    assert again.vocabulary == tokenizer.vocabulary and again.get_config() == config


def test_character_tokenizer_on_what_it_does_not_know():
    tokenizer = preprocessing.CharacterTokenizer("ab")
    with pytest.raises(ValueError, match="does not know 'x', at place 2 of the text"):
        tokenizer.encode("abx")
    with pytest.raises(TypeError, match="one text; received list"):
        tokenizer.encode(["a"])
    for wrong in (2, -1):
        with pytest.raises(ValueError, match=f"from 0 to 1, .* received {wrong}"):
            tokenizer.decode([0, wrong])
    for wrong in ([[0, 1]], [0.0], 1):
        with pytest.raises(ValueError, match="one sequence of integers"):
            tokenizer.decode(wrong)
    with pytest.raises(ValueError, match="at least one character"):
        preprocessing.CharacterTokenizer("")
    for wrong in ("", "ab", 1):
        with pytest.raises(ValueError, match="one character or None"):
            preprocessing.CharacterTokenizer("ab", unknown=wrong)
    tolerant = preprocessing.CharacterTokenizer("ba", unknown="_", sort=False)
    assert tolerant.vocabulary == "ba_"
    assert tolerant.decode(tolerant.encode("abxé")) == "ab__"


def test_pad_sequences():
    assert utils.pad_sequences([[1], [2, 3, 4]], padding="post").tolist() == [[1, 0, 0], [2, 3, 4]]
    cut = utils.pad_sequences([[1, 2, 3]], maxlen=2, truncating="post", dtype="float32", value=-1)
    assert cut.tolist() == [[1, 2]] and cut.dtype == np.float32
    assert utils.pad_sequences([np.ones((2, 3)), np.ones((1, 3))]).shape == (2, 2, 3)
    with pytest.raises(ValueError, match='padding must be "pre" or "post"'):
        utils.pad_sequences([[1]], padding="left")


def test_windows_over_a_series():
    data = np.arange(10)
    windows = utils.timeseries_dataset_from_array(
        data, data * 10, 3, sequence_stride=2, sampling_rate=2, batch_size=2
    )
    assert [x.tolist() for x, _ in (windows[i] for i in range(len(windows)))] == [
        [[0, 2, 4], [2, 4, 6]], [[4, 6, 8]],
    ]  # fmt: skip
    assert windows[0][1].tolist() == [0, 20]
    part = utils.timeseries_dataset_from_array(data, None, 2, start_index=4, end_index=7)
    assert [x.tolist() for x in part] == [[[4, 5], [5, 6]]]
    assert [(len(x), len(y)) for x, y in windows] == [(2, 2), (1, 1)]
    single = utils.timeseries_dataset_from_array(data, None, 9, batch_size=None)
    assert [x.tolist() for x in single] == [list(range(9)), list(range(1, 10))]
    with pytest.raises(ValueError, match="no window of 11 steps"):
        utils.timeseries_dataset_from_array(data, None, 11)


def test_texts_of_a_folder(tmp_path):
    for name in ("neg", "pos"):
        (tmp_path / name).mkdir()
        for i in range(3):
            (tmp_path / name / f"{i}.txt").write_text(f"{name} {i}")
    data = utils.text_dataset_from_directory(tmp_path, batch_size=4, shuffle=False, verbose=False)
    assert len(data) == 2 and data.class_names == ["neg", "pos"]
    assert data[0][0].tolist() == ["neg 0", "neg 1", "neg 2", "pos 0"]
    assert data[0][1].tolist() == [0, 0, 0, 1]
    assert [len(x) for x, _ in data] == [4, 2]
    alone = utils.text_dataset_from_directory(
        tmp_path, label_mode=None, batch_size=None, shuffle=False, verbose=False
    )
    assert list(alone)[:2] == ["neg 0", "neg 1"]
    train, held = utils.text_dataset_from_directory(
        tmp_path, validation_split=0.5, subset="both", seed=1, verbose=False
    )
    assert not set(train.file_paths) & set(held.file_paths)
    assert len(train.file_paths) + len(held.file_paths) == 6
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"No .txt files"):
        utils.text_dataset_from_directory(tmp_path / "empty", labels=None, verbose=False)


def test_texts_go_into_a_model_and_back_from_its_file(tmp_path):
    texts, y = np.array([["a b"], ["c"]] * 4), np.ones((8, 1))
    tokens = layers.TextVectorization(output_sequence_length=4)
    tokens.adapt(texts)
    model = picodl.Sequential(
        [
            picodl.Input((1,), dtype="string"),
            tokens,
            layers.Embedding(tokens.vocabulary_size(), 3, mask_zero=True),
            layers.GRU(2),
            layers.Dense(1),
        ]
    )
    model.compile("adam", "mse")
    history = model.fit(texts, y, validation_split=0.25, verbose=0).history
    assert np.isfinite(history["val_loss"]).all() and np.isfinite(
        model.evaluate(texts, y, verbose=0)
    )
    model.save(tmp_path / "m.keras")
    again = picodl.saving.load_model(tmp_path / "m.keras")
    np.testing.assert_array_equal(again.predict(texts, verbose=0), model.predict(texts, verbose=0))
    with pytest.raises(ValueError, match="x must hold numbers, but received strings"):
        picodl.Sequential([layers.Dense(2)]).predict(texts, verbose=0)


class Batches(utils.PyDataset):
    """Batches by number that know their end by their length alone."""

    def __init__(self, *batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index % len(self.batches)], np.zeros(1)


def test_layers_adapt_to_batches_by_number():
    x = np.random.default_rng(0).normal(size=(30, 4)).astype("f")
    texts = np.array(["a b", "b c", "b"])
    for layer, data in (
        (layers.Normalization(), x),
        (layers.Discretization(num_bins=3), x),
        (layers.StringLookup(), texts),
        (layers.TextVectorization(), texts),
    ):
        whole = type(layer).from_config(layer.get_config())
        whole.adapt(data)
        layer.adapt(Batches(*np.array_split(data, 3)))
        if isinstance(layer, layers.Normalization):
            np.testing.assert_allclose(layer.variance, whole.variance, rtol=1e-5)
        elif isinstance(layer, layers.Discretization):
            np.testing.assert_allclose(layer.bin_boundaries, whole.bin_boundaries, atol=0.3)
        else:
            assert layer.get_vocabulary() == whole.get_vocabulary()


@pytest.mark.parametrize("shape", [(3, 1), (3, 4), (5,)])
def test_normalization_refuses_inputs_of_another_size(shape):
    layer = layers.Normalization()
    layer.adapt(np.arange(10.0).reshape(2, 5))
    assert layer(np.ones((3, 2, 5))).shape == (3, 2, 5)
    with pytest.raises(ValueError, match=r"normalization.*received shape"):
        layer(np.ones(shape))


def test_normalization_keeps_the_dtype_of_its_inputs():
    layer = layers.Normalization()
    layer.adapt(np.arange(10.0).reshape(2, 5))
    for dtype in ("float16", "float32", "float64"):
        assert layer.call(Tensor(np.ones((3, 5), dtype))).dtype == dtype


def test_a_list_of_arrays_is_one_of_batches_for_normalization():
    x = np.random.default_rng(0).normal(3, 2, size=(30, 4)).astype("f")
    uneven = [x[:8], x[8:24], x[24:]]
    for batches in (uneven, [x], [(part, np.zeros(1)) for part in uneven], iter(uneven)):
        layer = layers.Normalization()
        layer.adapt(batches)
        np.testing.assert_allclose(layer.mean, x.mean(0, keepdims=True), rtol=1e-5)
        np.testing.assert_allclose(layer.variance, x.var(0, keepdims=True), rtol=1e-5)
    layer = layers.Normalization()
    layer.adapt([[1.0, 2.0], [3.0, 6.0]])  # rows of numbers
    np.testing.assert_array_equal(layer.mean, [[2, 4]])


@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: layers.StringLookup(vocabulary=["a"], dtype=dtype),
        lambda dtype: layers.TextVectorization(vocabulary=["a"], dtype=dtype),
        lambda dtype: layers.Hashing(3, dtype=dtype),
    ],
)
def test_numbers_of_categories_have_the_integer_dtype_asked_for(make):
    for dtype, expected in ((None, "int64"), ("int64", "int64"), ("int32", "int32")):
        layer = make(dtype)
        assert layer(np.array(["a", "b"])).dtype == expected
        assert layer(picodl.Input((1,), dtype="string")).dtype == expected
        again = type(layer).from_config(layer.get_config())
        assert again.dtype_policy == layer.dtype_policy


def test_configs_of_keras_name_an_integer_policy():
    policy = {"class_name": "DTypePolicy", "config": {"name": "int64"}, "module": "keras"}
    layer = layers.HashedCrossing.from_config({"num_bins": 3, "dtype": policy, "name": "cross"})
    assert layer([np.array([1]), np.array([2])]).dtype == np.int64
    layer = layers.StringLookup.from_config({"vocabulary": ["a"], "oov_method": "floormod"})
    assert layer(["a"]).numpy().tolist() == [1]


def test_own_standardisation_may_use_the_string_functions_of_numpy():
    for standardize in (
        lambda text: np.char.replace(np.char.lower(text), ",", ""),
        lambda text: text.lower().replace(",", ""),
    ):
        layer = layers.TextVectorization(standardize=standardize, vocabulary=["x", "y"])
        assert layer(["X, y"]).numpy().tolist() == [[2, 3]]


def test_crossings_take_one_number_a_sample():
    with pytest.raises(ValueError, match=r"shape \(batch,\) or \(batch, 1\)"):
        layers.HashedCrossing(10)([np.ones((1, 1, 1), int), np.ones((1, 1, 1), int)])


@pytest.mark.parametrize(
    ("unknown", "hot", "counted"),
    [(1, [1, 1, 1, 0], [1, 1, 2, 0]), (2, [1, 0, 1, 1, 0], [1, 0, 1, 2, 0])],
)
def test_masked_tokens_have_no_place_in_vectors(unknown, hot, counted):
    tokens = np.array([["one", "two", "four", "two", ""]])
    options = {
        "mask_token": "", "num_oov_indices": unknown, "vocabulary": ["one", "two", "three"],
    }  # fmt: skip
    layer = layers.StringLookup(output_mode="multi_hot", **options)
    assert layer(tokens).numpy().tolist() == [hot]
    assert layer.get_vocabulary() == ["[UNK]"] * unknown + ["one", "two", "three"]
    assert layer.vocabulary_size() == layer.compute_output_shape((None, 5))[-1] == len(hot)
    again = layers.StringLookup.from_config(layer.get_config())
    assert again(tokens).numpy().tolist() == [hot]
    layer = layers.StringLookup(output_mode="count", **options)
    assert layer(tokens).numpy().tolist() == [counted]
    layer = layers.StringLookup(output_mode="one_hot", **options)
    assert layer(np.array(["", "one"])).numpy().sum(-1).tolist() == [0, 1]
    wide = layers.StringLookup(
        output_mode="multi_hot", max_tokens=7, pad_to_max_tokens=True, **options
    )
    assert wide(tokens).numpy().tolist() == [hot + [0] * (7 - len(hot))]


def test_idf_weights_may_cover_the_unknown_tokens():
    options = {"output_mode": "tf_idf", "num_oov_indices": 2}
    layer = layers.StringLookup(vocabulary=["a", "b"], idf_weights=[0.1, 0.3], **options)
    np.testing.assert_allclose(layer.idf_weights, [0.2, 0.2, 0.1, 0.3])
    given = ["[UNK]", "[UNK]", "a", "b"]
    layer = layers.StringLookup(vocabulary=given, idf_weights=[0.7, 0.8, 0.1, 0.3], **options)
    again = layers.StringLookup.from_config(json.loads(json.dumps(layer.get_config())))
    for one in (layer, again):
        np.testing.assert_allclose(one.idf_weights, [0.7, 0.8, 0.1, 0.3])
        assert one.get_vocabulary() == given
    with pytest.raises(ValueError, match='idf_weights go with output_mode="tf_idf" only'):
        layers.StringLookup(vocabulary=["a"], idf_weights=[1.0])
    with pytest.raises(ValueError, match="4 tokens, but 2 idf_weights"):
        layers.StringLookup(vocabulary=given, idf_weights=[0.1, 0.3], **options)
    with pytest.raises(ValueError, match="gives fractions; received dtype int64"):
        layers.StringLookup(dtype="int64", **options)


def test_lookups_need_a_vocabulary_without_the_mask_token():
    for layer in (layers.StringLookup(), layers.TextVectorization()):
        with pytest.raises(RuntimeError, match=r"no vocabulary yet: call adapt\(data\)"):
            layer(["a"])
    for mode in ("int", "multi_hot"):
        with pytest.raises(ValueError, match="the mask token 'm' has no place"):
            layers.StringLookup(mask_token="m", vocabulary=["a", "m"], output_mode=mode)
    with pytest.raises(ValueError, match="max_tokens must be an integer of at least 2"):
        layers.StringLookup(max_tokens=1)


TEXTS = ["the cat,sat", "", "a dog"]
SPLITS = {
    "a text, by a method": lambda text: text.split(","),
    "a text, by numpy": lambda text: np.char.split(text, ","),
    "a text, as a generator": lambda text: (part for part in text.split(",")),
    "a batch, in a loop": lambda texts: [text.split(",") for text in texts],
    "a batch, by numpy": lambda texts: np.char.split(np.char.strip(texts.astype(str)), ","),
    "a batch, by its methods": lambda texts: [t.encode().split(b",") for t in texts.tolist()],
}


@pytest.mark.parametrize("kind", SPLITS)
def test_split_may_take_a_text_or_a_batch(kind):
    layer = layers.TextVectorization(split=SPLITS[kind], standardize=None)
    layer.adapt(TEXTS)
    assert layer.get_vocabulary() == ["", "[UNK]", "the cat", "sat", "a dog"]
    assert layer(TEXTS).numpy().tolist() == [[2, 3], [0, 0], [4, 0]]
    assert layer("the cat,x").numpy().tolist() == [2, 1]


@pytest.mark.parametrize(
    "standardize",
    [
        lambda text: text.upper(),
        np.char.upper,
        lambda texts: [text.upper() for text in texts],
        lambda texts: np.array([text.upper() for text in texts.tolist()]),
    ],
)
def test_standardize_may_take_a_text_or_a_batch(standardize):
    layer = layers.TextVectorization(standardize=standardize, vocabulary=["THE", "DOG"])
    assert layer(["the dog", "dog"]).numpy().tolist() == [[2, 3], [3, 0]]


def test_functions_that_fit_neither_way_are_named():
    def lengths(texts):
        return [[["x"]]]

    with pytest.raises(ValueError, match="lengths of TextVectorization gives neither"):
        layers.TextVectorization(split=lengths)(["a b", "c"])
    with pytest.raises(ZeroDivisionError):
        layers.TextVectorization(split=lambda text: 1 / 0)(["a b", "c"])
