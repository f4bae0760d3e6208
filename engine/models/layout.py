"""Which tensors a decoder needs, under the names a file format gives them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from engine.models.errors import ModelError
from engine.models.spec import ModelSpec
from engine.models.weights import LayerOf, WeightsOf

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction of it that is done, 0.0 to 1.0."""
Shape = tuple[int, ...]
T = TypeVar("T")

_ALWAYS = ("input_norm", "q", "k", "v", "o", "post_norm", "gate", "up", "down")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The names of one file format."""

    embed: str
    norm: str
    lm_head: str
    layer: str
    """Prefix of a layer's tensors, with {} for its index."""
    fields: dict[str, str]
    """Field of `LayerWeights` to the rest of its tensor's name."""

    def shapes(self, spec: ModelSpec, optional: Iterable[str]) -> dict[str, Shape]:
        """Every tensor that must be in the file; `optional`: fields of `LayerWeights` the model has
        besides those all have."""
        shapes: dict[str, Shape] = {self.embed: (spec.vocab_size, spec.hidden_size)}
        of_layer = _layer_shapes(spec)
        for index in range(spec.num_layers):
            for field in (*_ALWAYS, *optional):
                shapes[self._name(index, field)] = of_layer[field]
        shapes[self.norm] = (spec.hidden_size,)
        if not spec.tie_embeddings:
            shapes[self.lm_head] = (spec.vocab_size, spec.hidden_size)
        return shapes

    def weights(self, spec: ModelSpec, tensors: Mapping[str, Any]) -> WeightsOf[Any]:
        """Put loaded tensors in their places."""
        layers = tuple(
            LayerOf(
                **{
                    field: tensors[name]
                    for field in self.fields
                    if (name := self._name(index, field)) in tensors
                }
            )
            for index in range(spec.num_layers)
        )
        embed = tensors[self.embed]
        lm_head = embed if spec.tie_embeddings else tensors[self.lm_head]
        return WeightsOf(embed=embed, layers=layers, norm=tensors[self.norm], lm_head=lm_head)

    def _name(self, index: int, field: str) -> str:
        return self.layer.format(index) + self.fields[field]


def load_tensors(wanted: Collection[str], load: Callable[[str], T], progress: Progress) -> dict[str, T]:
    """Load each wanted tensor, reporting how far along it is."""
    tensors = {}
    for done, name in enumerate(wanted):
        progress("Loading weights", done / len(wanted))
        tensors[name] = load(name)
    progress("Loading weights", 1.0)
    return tensors


def check_names(path: Path, wanted: Collection[str], present: Collection[str]) -> None:
    """Refuse a file that lacks a tensor, or has one the decoder would have to leave out.

    Raises:
        ModelError: names the first such tensor.
    """
    for name in wanted:
        if name not in present:
            raise ModelError(f"{path}: tensor {name!r} is missing")
    for name in present:
        if name not in wanted:
            raise ModelError(f"{path}: tensor {name!r} has no place in this architecture")


def check_shape(path: Path, name: str, shape: Shape, wanted: Shape) -> None:
    """Refuse a tensor of the wrong shape.

    Raises:
        ModelError: names the tensor and both shapes.
    """
    if shape != wanted:
        raise ModelError(f"{path}: tensor {name!r} has shape {list(shape)}, expected {list(wanted)}")


def _layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    matrices = {
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
    }
    biases = {f"{name}_bias": shape[:1] for name, shape in matrices.items()}
    norms = {
        "input_norm": (hidden,),
        "post_norm": (hidden,),
        "q_norm": (spec.head_dim,),
        "k_norm": (spec.head_dim,),
    }
    return {**matrices, **biases, **norms}
