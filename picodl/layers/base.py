"""Layer: a module that builds its weights at first use and can be described by a config."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from picodl import config, naming, regularizers, symbolic, tree
from picodl.config import DTypePolicy, thread
from picodl.layers.description import DescribedModule
from picodl.layers.input_spec import InputSpec
from picodl.layers.shapes import as_shape, is_regular, map_shapes
from picodl.layers.signature import CallSignature, tried_out
from picodl.operation import bound_arguments
from picodl.parallel import blas_single_thread
from picodl.symbolic import Spec, Step, Symbol
from picodl.tensor import Tensor
from picodl.typing import Shape

_build_lock = threading.RLock()

_BY_CALL, _BY_FORWARD = 1, 2
_TRAINING = {"training"}
_GUARDED = 2048  # elements of the input, from which on BLAS is held to one thread: 2 us


def _spread_by_picodl(x: Any) -> bool:
    """Whether to hold BLAS to one thread while a model runs on x.

    Its threads and picodl's get in each other's way. Rows of features meet dense layers alone,
    which gain by BLAS's threads, a seventh at 128 rows.
    """
    return getattr(x, "size", 0) >= _GUARDED and (x.ndim != 2 or x.dtype.kind != "f")


# what Layer.__init__ sets: without them, a subclass forgot to call it
_MADE_BY_INIT = {"name", "_rounds", "_dtype", "_trainable", "autocast", "activity_regularizer"}


def tracked(build: Callable[..., Any]) -> Callable[..., Any]:
    """Run build under the build lock and the layer's name; a build that fails leaves no trace."""

    @functools.wraps(build)
    def wrapper(self: Layer, *shapes: Any, **named: Any) -> None:
        if vars(self).get("_building"):
            build(self, *shapes, **named)
            return
        with _build_lock, naming.name_scope(self.name):
            before = dict(vars(self))
            self._building = True
            try:
                shapes = tuple(as_shape(s) for s in shapes)
                named = {key: as_shape(s) for key, s in named.items()}
                build(self, *shapes, **named)
            except BaseException:
                vars(self).clear()
                vars(self).update(before)
                raise
            del self._building
            self.built = True
            self._path = "/".join(thread.names)
            self._build_shapes = (shapes, named)

    return wrapper


class Layer(DescribedModule):
    """The base of all layers and models.

    Subclasses override `__init__`, `build(input_shape)`, `call(inputs)` (or `forward`),
    `compute_output_shape(input_shape)` and `get_config()`.

    Args:
        activity_regularizer: penalty on the outputs, divided by the batch size.
        trainable: whether the weights are trained.
        dtype: dtype or dtype policy of weights and computation. Defaults to floatx.
        autocast: whether floating inputs are cast to that dtype.
        name: unique in a model. Defaults to the class name in snake case, numbered.

    >>> class Scale(Layer):
    ...     def build(self, input_shape):
    ...         self.factor = self.add_weight(input_shape[-1:], "ones", name="factor")
    ...
    ...     def call(self, x):
    ...         return x * self.factor
    >>> Scale()(np.ones((1, 2))).shape
    (1, 2)
    """

    supports_masking = False
    warns_of_dropped_masks = True
    accepts_strings = False
    computes = True  # False for models: only the layers inside do
    input_spec: Any = None
    _signature: CallSignature | None = None
    _called = False
    _quick = 0  # whether calls may take the short path, and what they run
    _building: bool
    _dtype: np.dtype[Any]
    _rounds: bool
    _build_shapes: tuple[tuple[Any, ...], dict[str, Any]]
    built = False  # True for classes that have nothing to build

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._signature = None
        if "compute_mask" in cls.__dict__ and "supports_masking" not in cls.__dict__:
            cls.supports_masking = True
        if "build" in cls.__dict__:
            cls.build = tracked(cls.__dict__["build"])  # type: ignore[method-assign]
            cls.built = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        self = object.__new__(cls)
        if cls.get_config is DescribedModule.get_config and cls.__init__ is not Layer.__init__:
            self._auto_config = bound_arguments(cls, self, args, kwargs)
        return self

    def __init__(
        self,
        *,
        activity_regularizer: Any = None,
        trainable: bool = True,
        dtype: Any = None,
        autocast: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._declared_shape = _declared_shape(self, kwargs)
        if kwargs:
            known = [p for p in inspect.signature(type(self).__init__).parameters if p != "self"]
            unknown = next(iter(kwargs))
            raise TypeError(
                f"{type(self).__name__} does not take the argument {unknown!r}."
                + naming.suggest(unknown, [*known, "trainable", "dtype", "name"])
            )
        if name is not None and (not isinstance(name, str) or not name or "/" in name):
            raise ValueError(
                f"{type(self).__name__}: name must be a non-empty string without '/'; "
                f"received {name!r}."
            )
        self.name = name or naming.auto_name(naming.to_snake_case(type(self).__name__))
        self.activity_regularizer = regularizers.get(activity_regularizer)
        self._trainable = bool(trainable)
        self.dtype_policy = dtype
        self.autocast = autocast and self._dtype.kind == "f"

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_dtype" in state:  # pickle makes a dtype object of its own, and `is` asks for numpy's
            self._dtype = np.dtype(self._dtype.char)

    # ---------------------------------------------------------------- weights

    @tracked
    def build(self, input_shape: Any) -> None:
        """Create the weights for inputs of this shape; called once, before the first call."""

    # ---------------------------------------------------------------- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._quick and len(args) == 1 and not kwargs and thread.losses is not None:
            # the short path of a layer of one input inside a model: 1.5 us less
            x = args[0]
            if type(x) is Tensor and x.mask is None and x.data.dtype is self._dtype:
                spec = self.input_spec
                if (
                    spec is None or (type(spec) is InputSpec and spec.fits(x.data.shape))
                ) and self.activity_regularizer is None:
                    try:
                        return self.call(x) if self._quick == _BY_CALL else self.forward(x)
                    except Exception as error:
                        self._explain(error, args)
                        raise
        signature = type(self)._signature or CallSignature.of(type(self))
        x = args[0] if args else None
        if type(x) is Tensor and len(args) == 1 and not kwargs and not signature.several:
            mask = x.mask  # the short path of layers of one input
            if x.data.dtype is not self._dtype:
                args = (self._ready(x),)
        elif (
            type(x) is np.ndarray
            and x.dtype is self._dtype
            and len(args) == 1
            and kwargs.keys() <= _TRAINING
        ):
            mask = None  # the short path of a model that is called on an array
            args = (Tensor(x),)
        else:
            if symbolic.is_symbolic(args) or (kwargs and symbolic.is_symbolic(kwargs)):
                return self._record(args, kwargs)
            args = tuple(self._ready(a) for a in args)
            if kwargs:
                kwargs = {k: v if k == "training" else self._ready(v) for k, v in kwargs.items()}
            mask = signature.find_masks(args, kwargs)
            if kwargs.get("mask") is not None:
                mask = kwargs["mask"]
        if not self.built:
            self._build_for(signature, args, kwargs)
        spec = self.input_spec
        if spec is not None and not (
            type(x) is Tensor and type(spec) is InputSpec and spec.fits(x.shape)
        ):
            self._check(args[0] if args else next(iter(kwargs.values())))
        if mask is not None and signature.mask and "mask" not in kwargs:
            kwargs["mask"] = mask
        training = kwargs.pop("training", None) if kwargs else None
        around = thread.training
        if training is None:
            training = around
            if training is None:
                training = self._training
                if training is None:
                    training = signature.training_default
        if signature.training:
            kwargs["training"] = training
        outermost = thread.losses is None
        guarded = outermost and bool(args) and _spread_by_picodl(args[0])
        if guarded:
            blas_single_thread().__enter__()
        if outermost:
            thread.losses = []
        thread.training = training
        try:
            if self._called:
                y = self.forward(*args, **kwargs)
            else:
                with naming.name_scope(self.name):
                    y = self.forward(*args, **kwargs)
                self._called = True
                if signature.plain and not self._rounds:
                    self._quick = _BY_CALL if signature.by_call else _BY_FORWARD
            if self.activity_regularizer is not None:
                self._penalise(y)
            if self._rounds:  # mixed precision: computed in the weights' dtype, kept in the other
                y = tree.map_structure(self._ready, y)
        except Exception as error:
            self._explain(error, args)
            raise
        finally:
            thread.training = around
            if outermost:
                thread.finished = thread.losses or []
                thread.losses = None
            if guarded:
                blas_single_thread().__exit__()
        if mask is not None or (self.supports_masking and signature.makes_masks):
            self._pass_mask(args, mask, y)
        return y

    def _ready(self, x: Any) -> Any:
        """An argument as Tensors of the layer's compute dtype; integers stay as they are."""
        if isinstance(x, Tensor):
            if x.data.dtype.kind == "f" and self.autocast and x.data.dtype != self._dtype:
                from picodl import ops

                mask, x = x.mask, ops.cast(x, self._dtype)
                x.mask = mask
            return x
        if isinstance(x, np.ndarray):
            if x.dtype.kind in "fiub":
                if type(x) is not np.ndarray:
                    x = _plain_array(self, x)
                if x.dtype.kind == "f" and self.autocast:
                    x = x.astype(self._dtype, copy=False)
                return Tensor(x)
            if self.accepts_strings:
                return x
            raise TypeError(
                f'{type(self).__name__} "{self.name}" expects numbers, but received an array of '
                f"dtype {x.dtype}."
            )
        if isinstance(x, (list, tuple)):
            if x and all(isinstance(p, (int, float, list, tuple)) for p in x):
                return self._ready(np.asarray(x)) if is_regular(x) else x
            return type(x)(self._ready(p) for p in x) if not hasattr(x, "_fields") else x
        if isinstance(x, dict):
            return {key: self._ready(p) for key, p in x.items()}
        if hasattr(x, "__array__") and not isinstance(x, np.generic):
            return self._ready(np.asarray(x))
        return x

    def _check(self, x: Any) -> None:
        specs = self.input_spec
        if isinstance(specs, (list, tuple)):
            for spec, part in zip(specs, tree.flatten(x), strict=False):
                if hasattr(part, "shape"):
                    spec.check(self, tuple(part.shape), part.dtype)
        else:
            specs.check(self, tuple(x.shape) if hasattr(x, "shape") else (), getattr(x, "dtype", 0))

    def _check_shape(self, shape: Shape) -> None:
        """Compare the shape of the first input, in build, with what is expected of it."""
        specs = self.input_spec
        spec = specs[0] if isinstance(specs, (list, tuple)) and specs else specs
        if spec:
            spec.check(self, shape)

    def _build_for(self, signature: CallSignature, args: Any, kwargs: Any) -> None:
        with _build_lock:
            if not self.built and "_building" not in vars(self):
                build = type(self).build
                shapes, named = signature.shapes_for(build, args, kwargs)
                if getattr(build, "runs", False):
                    build = Layer.build  # the call that follows builds what is inside
                build(self, *shapes, **named)

    def _pass_mask(self, args: Any, mask: Any, y: Any) -> None:
        if not self.supports_masking:
            if self.warns_of_dropped_masks:
                warnings.warn(
                    f'{type(self).__name__} "{self.name}" received a mask, but does not support '
                    "masking: the mask ends here.",
                    stacklevel=4,
                )
            return
        if isinstance(y, Tensor) and y.mask is not None and (not args or y is not args[0]):
            return
        masks = self.compute_mask(args[0] if args else None, mask)
        if isinstance(y, Tensor):
            y.mask = masks.data if isinstance(masks, Tensor) else masks
        elif isinstance(masks, (list, tuple)):
            for part, m in zip(tree.flatten(y), masks, strict=False):
                part.mask = m.data if isinstance(m, Tensor) else m

    def _explain(self, error: Exception, args: Any) -> None:
        """Say in a note which layer was being called, innermost first."""
        shapes = [str(tuple(a.shape)) for a in tree.flatten(args) if hasattr(a, "shape")]
        error.add_note(
            f'while calling {type(self).__name__} layer "{self.name}" on input of shape '
            + (", ".join(shapes) or "()")
        )

    def compute_mask(self, inputs: Any, previous_mask: Any) -> Any:
        """The mask of the output: by default the input's."""
        return previous_mask

    # ---------------------------------------------------------------- symbols and shapes

    def _record(self, args: Any, kwargs: Any) -> Any:
        """Record a call on Symbols, and give Symbols for the results."""
        signature = CallSignature.of(type(self))
        for leaf in tree.flatten((args, kwargs)):
            if isinstance(leaf, np.ndarray):
                raise TypeError(
                    f'{type(self).__name__} "{self.name}" was called on a symbol together with a '
                    "numpy array. Make the array a weight of a layer, or an Input of the model."
                )
        if not self.built:
            self._build_for(signature, args, kwargs)
        if self.input_spec is not None:
            self._check(args[0] if args else next(iter(kwargs.values())))
        step = Step(self, args, kwargs, self.name)
        with naming.name_scope(self.name):
            outputs = step.give(self.compute_output_spec(*args, **kwargs))
        vars(self).setdefault("_steps", []).append(step)
        return outputs

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        """Shape and dtype of the outputs for Symbols, as `picodl.symbolic.Spec` leaves."""
        if type(self).compute_output_shape is Layer.compute_output_shape:
            return self._infer(args, kwargs)
        if type(self).build is Layer.build and not all(
            part.built for part in self.modules() if isinstance(part, Layer)
        ):
            with contextlib.suppress(Exception):  # what is inside is then built by the first call
                self._infer(args, kwargs)
        signature = CallSignature.of(type(self))
        shapes, named = signature.shapes_for(type(self).compute_output_shape, args, kwargs)
        found = self.compute_output_shape(*shapes, **named)
        return map_shapes(lambda s: Spec(s, self._dtype.name), found)

    def compute_output_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shape of the output for inputs of the given shape.

        The default tries the layer out on small arrays of zeros; nothing is recorded, and states
        and random generators are put back.
        """
        if not args and "input_shape" in kwargs:
            args = (kwargs["input_shape"],)
        symbols = map_shapes(lambda s: Symbol(s, self._dtype.name), args)
        if not self.built:
            self._build_for(CallSignature.of(type(self)), symbols, {})
        return tree.map_structure(lambda spec: spec.shape, self._infer(symbols, {}))

    def _infer(self, args: Any, kwargs: Any) -> Any:
        return tried_out(self, args, kwargs)

    # ---------------------------------------------------------------- losses

    def add_loss(self, loss: Any) -> None:
        """Add a number to the loss of the step in progress; to be used inside `call`.

        Raises:
            RuntimeError: outside a call.
        """
        if thread.losses is None:
            raise RuntimeError(
                f'{type(self).__name__} "{self.name}": add_loss() belongs inside call(), where the '
                "loss of one batch is computed."
            )
        losses = tree.flatten(loss)
        thread.losses.extend((self, value) for value in losses)
        if thread.stateless is not None and thread.stateless.collect_losses:
            thread.stateless.losses.extend(losses)

    def _penalise(self, y: Any) -> None:
        for part in tree.flatten(y):
            penalty = self.activity_regularizer(part)
            if part.ndim > 0:
                penalty = penalty / max(1, part.shape[0])
            self.add_loss(penalty)

    @property
    def losses(self) -> list[Any]:
        """Penalties of the trainable weights, and what the last call added by add_loss and
        activity regularizers, here and in the layers inside."""
        weights = [w for w in self.parameters() if getattr(w, "regularizer", None) is not None]
        penalties = [w.regularizer(w) for w in weights if w.requires_grad]
        inside = {id(module) for module in self.modules()}
        current = thread.finished if thread.losses is None else thread.losses
        return penalties + [value for layer, value in current if id(layer) in inside]

    # ---------------------------------------------------------------- dtype and config

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The dtypes of weights and computation; to be set before the layer is built."""
        return self._dtype_policy

    @dtype_policy.setter
    def dtype_policy(self, policy: Any) -> None:
        self._dtype_policy = config.as_policy(policy)
        self._dtype = np.dtype(self._dtype_policy.compute_dtype)
        self._rounds = self.computes and self.compute_dtype != self.variable_dtype
        self._quick = 0

    @property
    def dtype(self) -> str:
        return self.dtype_policy.variable_dtype

    @property
    def compute_dtype(self) -> str:
        """The dtype floating inputs are cast to."""
        return self.dtype_policy.compute_dtype

    @property
    def input_dtype(self) -> str:
        """`compute_dtype`, under its other name."""
        return self.compute_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of the weights."""
        return self.dtype_policy.variable_dtype

    def __getattr__(self, name: str) -> Any:
        if name in _MADE_BY_INIT and "_dtype_policy" not in vars(self):
            raise RuntimeError(
                f"The layer class {type(self).__name__} must call super().__init__(**kwargs) at "
                "the start of its own __init__."
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name}, built={self.built}>"


def _declared_shape(layer: Layer, kwargs: dict[str, Any]) -> Shape | None:
    """The shape given as input_shape=, input_dim= or batch_input_shape=, with the batch axis."""
    for key in ("input_shape", "input_dim", "batch_input_shape", "batch_shape"):
        if key in kwargs:
            shape = as_shape(kwargs.pop(key))
            if key != "batch_input_shape":
                warnings.warn(
                    f"{type(layer).__name__}: pass the shape to an Input(shape) at the start of "
                    f"the model instead of {key}= to a layer.",
                    stacklevel=4,
                )
            return shape if key.startswith("batch") else (None, *shape)
    return None


def _plain_array(layer: Layer, x: Any) -> Any:
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise ValueError(
            f'{type(layer).__name__} "{layer.name}" received a masked array with hidden entries. '
            "Fill them first, as in x.filled(0)."
        )
    return np.asarray(x)
