"""Whether the bytes of each token are what its detokenizer writes for it.

Grammars go by the bytes, readers get the text: where the two differ, an answer that follows its schema
token by token would not be JSON.
"""

from __future__ import annotations

from engine.models.errors import ModelError
from engine.tokenizer import Tokenizer


def check_token_bytes(tokenizer: Tokenizer) -> None:
    """Compare every token, behind another: at the start of a text some decoders drop a space.

    Takes about 0.1 s for 50,000 tokens.

    Raises:
        ModelError: some differ.
    """
    texts = tokenizer.token_bytes
    # Of two letters: one might be a byte, which decoders join with the bytes behind it.
    anchor = next((i for i, text in enumerate(texts) if len(text) > 1 and text.isalpha()), None)
    if anchor is None:
        return
    ids = [token_id for token_id, text in enumerate(texts) if text]
    written = tokenizer.decode_by_library([[anchor, token_id] for token_id in ids])
    differ = [
        token_id
        for token_id, text in zip(ids, written, strict=True)
        if (texts[anchor] + texts[token_id]).decode(errors="replace") != text
    ]
    if differ:
        raise ModelError(
            f"tokenizer: {len(differ)} tokens are decoded to other texts than they stand for, "
            f"such as {differ[0]} ({texts[differ[0]]!r})"
        )
