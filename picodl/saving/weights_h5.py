"""`.weights.h5`: the weights of a model, and its optimizer's state, in the layout of Keras 3.

    vars/0, 1, ...                  the model's own weights
    layers/dense/vars/0, 1, ...     a layer's weights: trainable ones, then states
    optimizer/vars/0, 1, ...        iteration, learning rate, then the slots

Each `vars` group names its owner in the attribute `name`. Beside every dataset stands a checksum in
the attribute `crc32` (see `checksum`), and the root counts the arrays; Keras ignores both,
`load_weights` checks them.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from picodl.layers.weights import adapters_of
from picodl.saving.files import FileError
from picodl.saving.hdf5 import Group, write_dataset
from picodl.saving.items import Item, Zeros, assign_all, misfit
from picodl.saving.layout import Place, places, title
from picodl.saving.own_state import Loader, check_sizes, keeps_its_own, stands_in

# groups that older writers made for things picodl keeps elsewhere or not at all
_ELSEWHERE = {"seed_generator", "random_generator", "metrics", "_metrics", "_loss_tracker"}
_COUNT = "arrays"  # attribute of the root: how many were written

# a variable, its values, and what it is called in messages; or a Loader, its items, their group
Pair = tuple[Any, Any, str]


def write_weights(
    stream: Any, model: Any, with_optimizer: bool = True, left_out: Collection[Any] = ()
) -> None:
    """Write a model's weights, and its optimizer's state if it has one, to a binary file."""
    import h5py

    with h5py.File(stream, "w") as file:
        write_places(file, saved_places(model, with_optimizer, left_out))


def write_places(file: Any, found: Iterable[Place]) -> None:
    """Write objects with their variables into an open h5py file."""
    count = 0
    for place in found:
        path = f"{place.path}/vars" if place.path else "vars"
        group = file.create_group(path)
        group.attrs["name"] = place.name
        for name, values in place.values():
            write_dataset(group, name.rpartition("/")[2], values, name)
            count += 1
    file.attrs[_COUNT] = count


def saved_places(
    model: Any, with_optimizer: bool = True, left_out: Collection[Any] = ()
) -> list[Place]:
    """What a file of the model holds.

    Raises:
        ValueError: if the model has not been built.
    """
    require_built(model)
    found = places(model, left_out)
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and with_optimizer:
        found.append(Place("optimizer", optimizer.name, list(optimizer.variables)))
    return found


def require_built(model: Any) -> None:
    """Refuse a model whose weights do not exist yet.

    Raises:
        ValueError: for such a model.
    """
    if not getattr(model, "built", True):
        raise ValueError(
            f'Model "{model.name}" has not been built, so it has no weights yet. Call it on data, '
            "or start it with an Input(shape)."
        )


def read_weights(
    root: Group, model: Any, skip_mismatch: bool = False, left_out: Collection[Any] = ()
) -> None:
    """Set a model's weights, and its optimizer's state, from a file's root group; all or nothing.

    Args:
        root: of an open file.
        model: built; a compiled one also takes the optimizer's state.
        skip_mismatch: keep the own weights of layers that do not fit, with a warning.
        left_out: layers that keep their own weights, whatever the file holds for them.

    Raises:
        FileError: if anything is missing, left over, damaged, or of another shape.
    """
    assign_all(model_pairs([root], model, skip_mismatch, left_out))


def model_pairs(
    roots: list[Group], model: Any, skip_mismatch: bool = False, left_out: Collection[Any] = ()
) -> list[Pair]:
    """A model's weights, and its optimizer's state, with their items in one or several files.

    Raises:
        FileError: if anything is missing, left over, or of another shape.
    """
    require_built(model)
    found: dict[str, Item] = {}
    lost = 0
    for root in roots:
        datasets = root.datasets()
        lost += max(0, (root.number(_COUNT) or 0) - len(datasets))
        for path, dataset in datasets.items():
            found[path.replace("_layer_checkpoint_dependencies", "layers")] = dataset
    size = sum(root.source.size for root in roots)
    pairs = weight_pairs(model, found, size, skip_mismatch, left_out)
    for root in roots:
        pairs += _state_pairs(root, model)
    if lost:
        warnings.warn(
            f"{lost} arrays that were written to the file, probably the optimizer's state, are not "
            "in it any more: it was edited, or is damaged.",
            stacklevel=5,
        )
    return pairs


def read_optimizer(root: Group, model: Any) -> None:
    """Set the state of a model's optimizer from a file's root group, if it is there."""
    assign_all(_state_pairs(root, model))


def weight_pairs(
    model: Any,
    found: Mapping[str, Item],
    size: int,
    skip_mismatch: bool = False,
    left_out: Collection[Any] = (),
) -> list[Pair]:
    """The model's weights with their items; only what the file declares is looked at.

    Args:
        model: built.
        found: path -> item.
        size: of the file, in bytes.
        skip_mismatch: leave out layers that do not fit, with a warning.
        left_out: layers that keep their own weights.

    Raises:
        FileError: if anything is missing, left over, or of another shape.
    """
    pairs: list[Pair] = []
    problems: list[str] = []
    known: set[str] = set()
    if left_out:
        bases = {place.base for place in places(model)}
        bases -= {place.base for place in places(model, left_out)}
        known = {path for path in found if path.rpartition("/")[0] in bases}
    for place in places(model, left_out):
        if keeps_its_own(place.owner):
            labels = [(v, label_of(v, place)) for v in place.variables]
            loader = Loader(place.owner, labels, skip_mismatch)
            items = {p.rpartition("/")[2]: i for p, i in found.items() if stands_in(p, place.base)}
            known.update(f"{place.base}/{name}" for name in items)
            pairs.append((loader, items, place.base))
            continue
        bad = len(problems)
        triples = [(v, path, label_of(v, place)) for path, v in place.items()]
        for variable, path, label in triples:
            known.add(path)
            item = found.get(path)
            problem = misfit(item, variable, label) if item is not None else ""
            if item is None:
                problem = f"{path}, for {label}, is missing"
            if problem:
                problems.append(problem)
        if len(problems) == bad:
            pairs += [(variable, found[path], label) for variable, path, label in triples]
            pairs += [(v, Zeros(v), label_of(v, place)) for v in adapters_of(place.owner)[1:]]
    extra = [path for path in found if path not in known and not _is_elsewhere(path)]
    if problems or extra:
        said = describe_mismatch(problems, extra)
        if not skip_mismatch:
            raise FileError(
                f"the weights do not fit {title(model)}: {said} Load them into the "
                "architecture they were saved from, or pass skip_mismatch=True to take what fits."
            )
        warnings.warn(f"load_weights left out what does not fit: {said}", stacklevel=5)
    check_sizes([items for loader, items, _ in pairs if isinstance(loader, Loader)], size)
    return pairs


def _is_elsewhere(path: str) -> bool:
    return path.startswith("optimizer/") or not _ELSEWHERE.isdisjoint(path.split("/"))


def describe_mismatch(problems: Iterable[str], extra: Iterable[str], limit: int = 8) -> str:
    """One sentence on what does not fit, with at most `limit` items of each kind."""
    parts = []
    for intro, items in (("", list(problems)), ("the model has no place for ", list(extra))):
        if items:
            more = f" and {len(items) - limit} more" if len(items) > limit else ""
            parts.append(intro + ", ".join(items[:limit]) + more)
    return "; ".join(parts) + "."


def label_of(variable: Any, place: Place) -> str:
    """What a variable is called in messages: its path, or its owner's name."""
    return getattr(variable, "path", "") or f"a weight of {place.name}"


def _state_pairs(root: Group, model: Any) -> list[Pair]:
    group = root.get("optimizer/vars") if root.get("optimizer") is not None else None
    if getattr(model, "optimizer", None) is None or not isinstance(group, Group):
        return []
    names = [str(number) for number in range(len(group.names()))]
    items = [group.get(name) for name in names]
    if None in items:
        raise FileError(f"optimizer/vars/{names[items.index(None)]} is missing.")
    return optimizer_pairs(model, items)


def optimizer_pairs(model: Any, items: list[Any]) -> list[Pair]:
    """The optimizer's variables with their items; none, with a warning, if the number differs.

    Raises:
        FileError: if one has another shape.
    """
    optimizer = model.optimizer
    if len(items) > len(optimizer.variables) and not getattr(optimizer, "built", False):
        optimizer.build(model.trainable_weights)
    variables = list(optimizer.variables)
    base = [v for v in variables if v.name in ("iteration", "learning_rate")]
    if len(items) == len(base):
        variables = base  # saved before the first step: the slots are still at their start
    if len(variables) != len(items):
        warnings.warn(
            f'The state of optimizer "{optimizer.name}" was not loaded: the file holds '
            f"{len(items)} variables, the optimizer has {len(variables)}.",
            stacklevel=6,
        )
        return []
    for item, variable in zip(items, variables, strict=True):
        if item is None:
            continue  # the file does not say
        if isinstance(item, Group):
            raise FileError("the optimizer's state holds a group where an array belongs.")
        problem = misfit(item, variable, variable.path)
        if problem:
            raise FileError(f"{problem}.")
    pairs = zip(variables, items, strict=True)
    return [(variable, item, variable.path) for variable, item in pairs if item is not None]
