"""`radish tune`: measure how attention is best cut on this machine's GPU, for `serve` to use."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from app.cli import CommandFailedError
from app.progress import progress_bar

_PAGE_TYPES: Final = ("bfloat16", "int8")
"""Of keys and values; fp8 takes the tiles of int8."""


class TuneConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `radish tune`."""

    head_sizes: Annotated[
        tuple[Annotated[int, msgspec.Meta(ge=16, le=256)], ...],
        msgspec.Meta(description="Dimensions of an attention head of the models to be served."),
    ] = (64, 128)


OPTIONS = TuneConfig


def run(config: TuneConfig) -> int:
    """Measure every kernel, head size and page type; returns the exit code."""
    # Imported here because it takes seconds, and `--help` must not wait for it.
    import torch  # noqa: PLC0415

    if not torch.cuda.is_available():
        raise CommandFailedError("this machine has no GPU that the installed torch can use")
    # These import Triton, which is there where a GPU is.
    from kernels.gpu.tile_table import table_path, write  # noqa: PLC0415
    from kernels.gpu.tiles import padded  # noqa: PLC0415
    from kernels.gpu.tuning import tune  # noqa: PLC0415

    cases = [(size, pages) for size in sorted(set(map(padded, config.head_sizes))) for pages in _PAGE_TYPES]
    with progress_bar() as progress:
        for index, (size, pages) in enumerate(cases):

            def tell(
                done: float, before: int = index, label: str = f"Heads of {size}, KV in {pages}"
            ) -> None:
                progress(label, (before + done) / len(cases))

            write(table_path(), tune(size, pages, tell))
    print(f"Written to {table_path()}; the next start uses it.")
    return 0
