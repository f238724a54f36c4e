"""Pickled arrays, lists and numbers read without unpickling: nothing in the file is called.

A pickle is a program for a machine with a stack. This is that machine with the instructions that
build plain data, and three names: numpy's array and dtype, and the codec that Python 3 writes bytes
with under protocol 2. The names are marks that this file understands, they are never looked up; any
other name or instruction ends the reading. So the memory needed grows with the file and no further.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl.saving.files import FileError
from picodl.typing import Array

_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray")
_NAMES = {
    **{(module, "_reconstruct"): "reconstruct" for module in _NUMPY},
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
}
_MOST = 4_000_000  # instructions other than the two for small numbers
_CODES = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)] + [
    "f4",
    "f8",
    "b1",
    "O8",
    "O4",
]


class Name:
    """A name that stood in the pickle: one of the values of _NAMES."""

    def __init__(self, name: str) -> None:
        self.name = name


class Dtype:
    """A dtype on its way: its code, and the byte order that follows."""

    def __init__(self, code: str) -> None:
        self.code, self.order = code, "|"


class Pickled:
    """An array on its way: `value` is an ndarray of numbers, or (shape, list) for objects."""

    value: Array | tuple[tuple[int, ...], list[Any]] | None = None


def read_pickled(data: bytes) -> Any:
    """The value in a pickle of protocol 2 to 5: dicts, lists, tuples, numbers, text, arrays.

    Args:
        data: the whole pickle.

    Returns: the value, with a `Pickled` for every array.

    Raises:
        FileError: for anything else, and for damaged data.

    >>> import pickle
    >>> read_pickled(pickle.dumps({"labels": [3, 70000]}, protocol=2))
    {'labels': [3, 70000]}
    >>> read_pickled(pickle.dumps(print))
    Traceback (most recent call last):
        ...
    picodl.saving.files.FileError: the pickle names builtins.print, which is not read: ...
    """
    try:
        return _Machine(data).run()
    except (IndexError, struct.error, TypeError, AttributeError, KeyError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"the pickle is damaged: {error}") from error


class _Machine:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        self.copied = 0  # bytes

    def run(self) -> Any:
        data, stack = self.data, self.stack
        push, at, steps = stack.append, 0, 0
        while True:
            code = data[at]
            if code == 0x4B:  # BININT1 and BININT2: most of a file of texts
                push(data[at + 1])
                at += 2
            elif code == 0x4D:
                push(data[at + 1] | data[at + 2] << 8)
                at += 3
            elif code == 0x2E:  # STOP
                break
            elif code in _STEPS:
                self.at = at + 1
                _STEPS[code](self)
                at = self.at
                steps += 1
                if steps > _MOST:
                    raise FileError(f"the pickle holds more than {_MOST} values.")
            else:
                raise FileError(f"the pickle holds the instruction {bytes([code])!r}: not read.")
        if len(stack) != 1 or self.marks:
            raise FileError("the pickle is damaged: it leaves more than one value.")
        return stack[0]

    def take(self, count: int) -> bytes:
        """The next bytes of the file."""
        piece = self.data[self.at : self.at + count]
        if count < 0 or len(piece) != count:
            raise FileError("the pickle is cut off.")
        self.at += count
        return piece

    def number(self, form: str) -> Any:
        """The next number, in a form of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        text = self.data[self.at : end].decode("ascii")
        self.at = end + 1
        return text

    def pop(self) -> Any:
        if self.marks and len(self.stack) <= self.marks[-1]:
            raise FileError("the pickle is damaged: it takes a value that is not there.")
        return self.stack.pop()

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def top(self, kind: type) -> Any:
        if (self.marks and len(self.stack) <= self.marks[-1]) or type(self.stack[-1]) is not kind:
            raise FileError(f"the pickle fills something that is no {kind.__name__}.")
        return self.stack[-1]

    def name(self, module: str, name: str) -> None:
        if (module, name) not in _NAMES:
            raise FileError(
                f"the pickle names {module}.{name}, which is not read: only arrays, lists, dicts, "
                f"numbers and text are, so that no file can run code."
            )
        self.stack.append(Name(_NAMES[module, name]))

    def copy(self, count: int) -> None:
        """Count the bytes of text and arrays: a value named twice must not take memory twice."""
        self.copied += count
        if self.copied > 2 * len(self.data):
            raise FileError("the pickle holds the same data many times.")

    def reduce(self) -> None:
        args, name = self.pop(), self.pop()
        kind = name.name if isinstance(name, Name) else ""
        if kind == "reconstruct" and isinstance(args[0], Name) and args[0].name == "ndarray":
            self.stack.append(Pickled())
        elif kind == "dtype" and _word(args[0]) in _CODES:
            self.stack.append(Dtype(_word(args[0])))
        elif kind == "encode" and args[1:] == ("latin1",) and type(args[0]) is str:
            self.copy(len(args[0]))
            self.stack.append(args[0].encode("latin1"))
        else:
            raise FileError(f"the pickle calls {kind or 'something unknown'} with other arguments.")

    def build(self) -> None:
        state = self.pop()
        target = self.stack[-1]
        if type(state) is not tuple:
            raise FileError("the pickle sets a state that is no tuple.")
        if type(target) is Dtype:
            order = _word(state[1])
            plain = all(part is None for part in state[2:5])
            if len(state) != 8 or order not in ("<", ">", "|", "=") or not plain:
                raise FileError("the pickle holds a dtype with fields.")
            target.order = order
        elif type(target) is Pickled and target.value is None:
            _, shape, dtype, fortran, values = state
            target.value = _array(shape, dtype, fortran, values)
            self.copy(len(values))
        else:
            raise FileError("the pickle sets the state of something that has none.")

    def set_items(self, pairs: list[Any]) -> None:
        target = self.top(dict)
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if type(key) not in (str, bytes):
                raise FileError("the pickle holds a dict whose keys are no text.")
            target[key] = value


def _word(text: Any) -> str:
    """A short text, which Python 2 wrote as bytes."""
    return text.decode("latin1") if type(text) is bytes else str(text)


def _array(shape: Any, dtype: Any, fortran: Any, values: Any) -> Any:
    """The value of a `Pickled` with this state."""
    if type(shape) is not tuple or any(type(n) is not int or n < 0 for n in shape):
        raise FileError("the pickle holds an array with a damaged shape.")
    count = 1
    for n in shape:
        count *= n
    if type(dtype) is not Dtype:
        raise FileError("the pickle holds an array without a dtype.")
    if dtype.code[0] == "O":
        if type(values) is not list or len(values) != count or len(shape) != 1:
            raise FileError("the pickle holds an array of objects with a damaged shape.")
        return shape, values
    number = np.dtype((">" if dtype.order == ">" else "<") + dtype.code)
    if type(values) is not bytes or len(values) != count * number.itemsize:
        raise FileError(f"the pickle holds an array of shape {shape} that does not fit its data.")
    order = "F" if fortran else "C"
    array = np.frombuffer(values, number).reshape(shape, order=order)  # type: ignore[call-overload]
    return array.astype(number.newbyteorder("="), copy=False)


def _text(encoding: str, form: str) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(form)).decode(encoding, "surrogatepass"))


def _raw(form: str) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.take(m.number(form)))


def _value(value: Any) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(value)


def _new(kind: type) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(kind())


def _tuple(count: int) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(tuple(reversed([m.pop() for _ in range(count)])))


def _number(form: str) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.number(form))


def _put(form: str) -> Callable[[_Machine], None]:
    return lambda m: m.memo.__setitem__(m.number(form), m.stack[-1])


def _get(form: str) -> Callable[[_Machine], None]:
    return lambda m: m.stack.append(m.memo[m.number(form)])


def _protocol(machine: _Machine) -> None:
    if machine.number("B") > 5:
        raise FileError("the pickle has a protocol newer than 5.")


def _long(machine: _Machine) -> None:
    machine.stack.append(int.from_bytes(machine.take(machine.number("B")), "little", signed=True))


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    machine.name(module, name)


# the instructions, by the names that Python's pickletools gives them; STOP and the two commonest
# numbers are in run()
_STEPS: dict[int, Callable[[_Machine], None]] = {
    ord(code): step
    for code, step in {
        "\x80": _protocol,
        "\x95": lambda m: m.take(8) and None,  # FRAME
        "(": lambda m: m.marks.append(len(m.stack)),  # MARK
        "0": lambda m: m.pop() and None,  # POP
        "N": _value(None), "\x88": _value(True), "\x89": _value(False),
        "J": _number("<i"), "G": _number(">d"), "\x8a": _long,  # BININT, BINFLOAT, LONG1
        "U": _raw("B"), "T": _raw("<i"), "C": _raw("B"), "B": _raw("<I"), "\x8e": _raw("<Q"),
        "\x8c": _text("utf-8", "B"), "X": _text("utf-8", "<I"), "\x8d": _text("utf-8", "<Q"),
        ")": _value(()), "\x85": _tuple(1), "\x86": _tuple(2), "\x87": _tuple(3),
        "t": lambda m: m.stack.append(tuple(m.since_mark())),  # TUPLE
        "]": _new(list), "a": _append,  # EMPTY_LIST, APPEND
        "e": lambda m: _extend(m),  # APPENDS
        "}": _new(dict), "s": _set_item,  # EMPTY_DICT, SETITEM
        "u": lambda m: m.set_items(m.since_mark()),  # SETITEMS
        "q": _put("B"), "r": _put("<I"), "h": _get("B"), "j": _get("<I"),
        "\x94": lambda m: m.memo.__setitem__(len(m.memo), m.stack[-1]),  # MEMOIZE
        "c": lambda m: m.name(m.line(), m.line()), "\x93": _stack_global,  # GLOBAL
        "R": lambda m: m.reduce(), "b": lambda m: m.build(),  # REDUCE, BUILD
    }.items()
}  # fmt: skip


def _extend(machine: _Machine) -> None:
    items = machine.since_mark()
    machine.top(list).extend(items)
