"""Low-rank adaptation: a frozen table, and a change of it as the product of two small matrices."""

from __future__ import annotations

from typing import Any

from picodl import initializers, ops
from picodl.layers.base import Layer
from picodl.layers.checks import positive_integer
from picodl.tensor import no_grad
from picodl.typing import Array, Config


class LowRank(Layer):
    """A layer whose table of weights can be adapted: W' = W + (lora_alpha / lora_rank) * A @ B.

    The base of Dense, EinsumDense and Embedding. The table W is frozen; A and B are trained. Files
    hold W' in the place of W, so that they fit the layer with and without an adaptation; when one
    is loaded, W takes its values and B is zero again.

    Reference: Hu et al., 2021, "LoRA: Low-Rank Adaptation of Large Language Models",
    arXiv:2106.09685.
    """

    lora_enabled = False
    lora_rank: int | None = None
    lora_alpha: float | None = None
    _table = "kernel"  # the attribute that holds W

    def _set_lora(self, rank: int | None, alpha: float | None) -> None:
        """Keep the arguments lora_rank and lora_alpha for the build."""
        if rank is not None:
            self.lora_rank = positive_integer(self, "lora_rank", rank)
            self.lora_alpha = rank if alpha is None else alpha
            self._require_free()

    def _require_free(self) -> None:
        if getattr(self, f"{self._table}_constraint") is not None:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}": {self._table}_constraint does not go '
                "together with a low-rank adaptation. Make the layer without the constraint."
            )

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: Any = "he_uniform",
        b_initializer: Any = "zeros",
    ) -> None:
        """Freeze the table and train a change of low rank instead.

        Args:
            rank: the number of columns of A and rows of B.
            lora_alpha: the change is scaled by lora_alpha / rank. Defaults to the rank.
            a_initializer, b_initializer: first values; B begins with zeros, so that nothing changes
                at first.

        Compile the model again afterwards if it has been trained before.

        Raises:
            ValueError: before the layer is built, with a constraint on the table, or a second time.
        """
        if not self.built:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" has no weights to adapt yet: call it '
                "on data, or build(input_shape) first."
            )
        if self.lora_enabled:
            raise ValueError(
                f'{type(self).__name__} layer "{self.name}" is adapted already, with rank '
                f"{self.lora_rank}; that can be done once."
            )
        self._require_free()
        self._adapt(rank, lora_alpha, a_initializer, b_initializer)

    def _adapt(
        self, rank: int, alpha: float | None, a: Any = "he_uniform", b: Any = "zeros"
    ) -> None:
        rank = positive_integer(self, "rank", rank)
        table = getattr(self, self._table)
        penalty = getattr(self, f"{self._table}_regularizer")
        for end, shape, first in (
            ("a", (*table.shape[:-1], rank), a),
            ("b", (rank, table.shape[-1]), b),
        ):
            name = f"lora_{self._table}_{end}"
            weight = self.add_weight(shape, initializers.get(first), regularizer=penalty, name=name)
            weight.path = table.path.removesuffix(table.name) + name
            setattr(self, name, weight)
        table.trainable = False
        self.lora_rank, self.lora_alpha = rank, rank if alpha is None else alpha
        self.lora_enabled = True

    def _adapted(self) -> Any:
        """W', or W where nothing is adapted."""
        table = getattr(self, self._table)
        if not self.lora_enabled:
            return table
        a, b = self._adapters()
        return table + (self.lora_alpha / self.lora_rank) * ops.matmul(a, b)  # type: ignore[operator]

    def _adapters(self) -> tuple[Any, Any]:
        return getattr(self, f"lora_{self._table}_a"), getattr(self, f"lora_{self._table}_b")

    def merged_weights(self) -> dict[int, Array]:
        """id of each own weight -> the values it has in files: those of W', none for A and B."""
        if not self.lora_enabled:
            return {}
        with no_grad():
            table = getattr(self, self._table)
            return {id(table): self._adapted().data.astype(table.data.dtype, copy=False)}

    def _lora_config(self) -> Config:
        if self.lora_rank is None:
            return {}
        return {"lora_rank": self.lora_rank, "lora_alpha": self.lora_alpha}
