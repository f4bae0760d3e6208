"""What a sampled token does to its sequence: text, grammar, and whether it was the last one."""

from __future__ import annotations

from engine.request import Sequence
from engine.stream import TokenLogprob, Update
from grammars.thought import ThoughtMatcher


def accept_token(
    sequence: Sequence, token_id: int, logprob: TokenLogprob | None, eos_ids: frozenset[int]
) -> Update:
    """Append a sampled token and give the update for its consumer.

    A finish reason in the update ends the sequence. `token_id` -1 means that the sampler found nothing
    to choose from.
    """
    if sequence.params.max_tokens == 0:
        # The sample is by the way: the prompt had to be run.
        return Update(index=sequence.index, finish_reason="length")
    if token_id < 0:
        return _failed(sequence, "the model gave no usable probabilities")
    taken = _take(sequence, token_id)
    if taken is None:
        return _failed(sequence, f"the grammar refused the sampled token {token_id}")
    if taken != token_id:
        return _close(sequence, taken, eos_ids)
    return _append(sequence, token_id, logprob, eos_ids)


def _take(sequence: Sequence, token_id: int) -> int | None:
    """Advance the grammar by the sampled token, or by one that still leaves room to end the text.

    None if the grammar does not allow the token at all.
    """
    matcher, params = sequence.matcher, sequence.params
    if matcher is None:
        return token_id
    if params.ensure_complete:
        return matcher.accept_within(token_id, params.max_tokens - (sequence.known + 1 - sequence.num_prompt))
    return token_id if matcher.accept(token_id) else None


def _close(sequence: Sequence, first: int, eos_ids: frozenset[int]) -> Update:
    """End the text the shortest way, for anything else would not fit the budget any more.

    `first` is the first token of that way, already taken. None of them has log-probabilities.
    """
    update = _append(sequence, first, None, eos_ids)
    matcher = sequence.matcher
    assert matcher is not None
    for token_id in matcher.shortest_close() or ():
        if not matcher.accept(token_id):
            return _failed(sequence, f"the grammar refused the closing token {token_id}")
        update.merge(_append(sequence, token_id, None, eos_ids))
    update.text += sequence.detokenizer.finish()
    # It would have gone on: the budget is what ended it.
    update.finish_reason = "length"
    return update


def _append(
    sequence: Sequence, token_id: int, logprob: TokenLogprob | None, eos_ids: frozenset[int]
) -> Update:
    """Append a token that the grammar has taken."""
    sequence.tokens.append(token_id)
    update = Update(index=sequence.index, token_ids=[token_id])
    if logprob is not None:
        update.logprobs.append(logprob)
    if _ends(sequence, token_id, update, eos_ids):
        update.text = sequence.detokenizer.finish()
        return update
    may_stop = sequence.known - sequence.num_prompt > sequence.params.min_tokens
    if isinstance(sequence.matcher, ThoughtMatcher) and sequence.matcher.thinks:
        may_stop = False
    update.text = sequence.detokenizer.add([token_id], may_stop=may_stop)
    if sequence.detokenizer.stopped is not None:
        update.finish_reason, update.stop_reason = "stop", sequence.detokenizer.stopped
    elif sequence.matcher is not None and sequence.matcher.is_exhausted:
        # Only the end may follow, so it need not be sampled.
        update.finish_reason = "stop"
        update.text += sequence.detokenizer.finish()
    elif sequence.params.max_tokens <= sequence.known - sequence.num_prompt:
        update.finish_reason = "length"
        update.text += sequence.detokenizer.finish()
    return update


def append_forced_tokens(sequence: Sequence, update: Update, eos_ids: frozenset[int]) -> None:
    """Append the tokens that the grammar leaves no choice about, and their text to `update`.

    They are run as one chunk instead of one step each. A sequence that wants log-probabilities gets
    none appended: only sampling gives those.
    """
    if sequence.matcher is None or sequence.dictation is None:
        return
    forced = sequence.matcher.forced_tokens() if sequence.params.logprobs is None else []
    sequence.dictation.note(is_dictated=bool(forced))
    for token_id in forced:
        sequence.supersede_samples()
        if not sequence.matcher.accept(token_id):
            update.merge(_failed(sequence, f"the grammar refused its own token {token_id}"))
        else:
            update.merge(_append(sequence, token_id, None, eos_ids))
        if update.finish_reason is not None:
            return


def _ends(sequence: Sequence, token_id: int, update: Update, eos_ids: frozenset[int]) -> bool:
    """Whether the token itself ends the sequence; notes the reason in `update`."""
    params = sequence.params
    if token_id in params.stop_token_ids:
        update.finish_reason, update.stop_reason = "stop", token_id
    elif sequence.matcher is not None:
        # The grammar lets an end-of-sequence token through only where the sentence is whole.
        if sequence.matcher.is_terminated:
            update.finish_reason = "stop"
    elif token_id in eos_ids and not params.ignore_eos:
        update.finish_reason = "stop"
    return update.finish_reason is not None


def _failed(sequence: Sequence, message: str) -> Update:
    return Update(index=sequence.index, finish_reason="error", error=message)
