"""How far each way to store weights and KV is from float32 `transformers` on the same weights.

usage: .venv/bin/python ops/accuracy.py [--text FILE] [--tokens N] [--passage N]

The text (by default this repository's README, which no model has learned) is cut into passages; every
position of each counts. KL is the mean divergence in nats a token, top-1 the share of positions whose
likeliest token is the same, perplexity that of the text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AutoModelForCausalLM

from engine.batch import Batch
from engine.models.loader import embedded_model_path
from engine.models.native import NativeDecoder
from engine.models.native_load import load_native
from engine.models.native_plan import Quantize
from engine.tokenizer import load_tokenizer
from kernels.cpu.runtime import Runtime

PAGE_SIZE: Final = 16
README: Final = Path(__file__).parents[1] / "README.md"


@dataclass(frozen=True)
class Variant:
    """A row of the table."""

    weights: str
    dtype: torch.dtype
    quantize: Quantize | None
    kv: torch.dtype


VARIANTS: Final = (
    Variant("float32", torch.float32, None, torch.float32),
    Variant("bfloat16", torch.bfloat16, None, torch.bfloat16),
    Variant("int8", torch.float32, "int8", torch.bfloat16),
    Variant("gguf", torch.bfloat16, "gguf", torch.bfloat16),
    Variant("bfloat16", torch.bfloat16, None, torch.int8),
    Variant("int8", torch.float32, "int8", torch.int8),
    Variant("gguf", torch.bfloat16, "gguf", torch.int8),
)


class Divergence:
    """Sums over positions."""

    def __init__(self) -> None:
        self.positions = 0
        self.kl = self.same = self.loss = 0.0

    def add(self, expected: Tensor, computed: Tensor, passage: list[int]) -> None:
        """Count a passage: logits [tokens, vocab] of both, and its tokens."""
        target, other = F.log_softmax(expected, -1), F.log_softmax(computed, -1)
        self.kl += float((target.exp() * (target - other)).sum())
        self.same += int((expected.argmax(-1) == computed.argmax(-1)).sum())
        self.loss += float(F.nll_loss(other[:-1], torch.tensor(passage[1:]))) * len(passage)
        self.positions += len(passage)

    def row(self, weights: str, kv: str) -> str:
        """The numbers as a row of a Markdown table."""
        kl, same, loss = (number / self.positions for number in (self.kl, self.same, self.loss))
        return f"| {weights} | {kv} | {kl:.5f} | {100 * same:.1f}% | {np.exp(loss):.3f} |"


def passages(text: str, total: int, size: int) -> Iterator[list[int]]:
    """The first `total` tokens of a text in pieces of `size`."""
    tokens = load_tokenizer(embedded_model_path()).encode(text, add_special=False, parse_special=False)
    for start in range(0, min(total, len(tokens)) - 1, size):
        yield tokens[start : min(start + size, total)]


def whole_prompt(tokens: list[int]) -> Batch:
    """One sequence from its start, with logits of every position."""
    count, nothing = len(tokens), np.zeros(0, np.int64)
    places = np.arange(count)
    return Batch(
        token_ids=np.array(tokens, np.int64),
        pending_at=nothing,
        pending_from=nothing,
        positions=places,
        query_starts=np.array([0, count], np.int32),
        context_lens=np.array([count], np.int32),
        page_table=np.arange(-(-count // PAGE_SIZE), dtype=np.int32)[None],
        kv_slots=places,
        logit_rows=places,
        samples=[],
    )


def measure(variant: Variant, texts: list[list[int]], expected: list[Tensor]) -> Divergence:
    """One variant on all passages."""
    model = load_native(
        embedded_model_path(),
        dtype=variant.dtype,
        quantize=variant.quantize,
        runtime=Runtime(torch.get_num_threads()),
        progress=lambda _label, _fraction: None,
    )
    pages = -(-max(map(len, texts)) // PAGE_SIZE)
    decoder = NativeDecoder(model, num_pages=pages, page_size=PAGE_SIZE, kv_dtype=variant.kv)
    result = Divergence()
    for tokens, logits in zip(texts, expected, strict=True):
        batch = whole_prompt(tokens)
        result.add(logits, decoder.forward(batch, torch.from_numpy(batch.token_ids)), tokens)
    return result


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="Compare weight formats with float32 transformers.")
    parser.add_argument("--text", type=Path, default=README)
    parser.add_argument("--tokens", type=int, default=2048, help="how many of the text count")
    parser.add_argument("--passage", type=int, default=512, help="tokens of a passage")
    options = parser.parse_args()
    texts = list(passages(options.text.read_text(), options.tokens, options.passage))
    path = embedded_model_path()
    oracle: Any = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    with torch.inference_mode():
        expected = [oracle(input_ids=torch.tensor([tokens]), use_cache=False).logits[0] for tokens in texts]
    del oracle
    print("| weights | KV | KL | top-1 | perplexity |\n|---|---|---|---|---|")
    reference = Divergence()
    for tokens, logits in zip(texts, expected, strict=True):
        reference.add(logits, logits, tokens)
    print(reference.row("float32, `transformers`", "float32"))
    for variant in VARIANTS:
        kv = str(variant.kv).removeprefix("torch.")
        print(measure(variant, texts, expected).row(variant.weights, kv), flush=True)


if __name__ == "__main__":
    main()
