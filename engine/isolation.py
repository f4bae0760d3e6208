"""A step that fails is run again in halves, until what fails is alone: all others have their tokens.

That is right for any failure that leaves the device usable: rows do not read one another, and what a
failed run wrote to pages is written again. Whatever ran out of memory may cut a single row as well, as
fewer tokens need less of it.
"""

from __future__ import annotations

import logging
from concurrent.futures import CancelledError
from functools import partial

import numpy as np
import torch

from engine.batch import Batch, Launch, Runner, StepOutput
from engine.batch_part import part, with_ids

_log = logging.getLogger("radish.engine")


class IsolatingRunner:
    """A `Runner` that fails rows instead of steps; see `StepOutput.failed`."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def prepare(self, batch: Batch) -> Launch:
        """Never raises. The launch raises CancelledError if its masks will not come, and nothing else."""
        try:
            launch = self.runner.prepare(batch)
        except Exception as error:  # noqa: BLE001  whatever it is, it may be one row's alone
            return partial(self._run_parts, batch, error)
        return partial(self._run, batch, launch)

    def _run(self, batch: Batch, launch: Launch) -> StepOutput:
        try:
            return launch()
        except CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  as above
            return self._run_parts(batch, error)

    def _run_parts(self, batch: Batch, error: Exception) -> StepOutput:
        """Run a step that failed with `error`. The parts fill `batch.sampled`, where the step after this one,
        prepared already, finds what they sample."""
        _log.error("a step of %d tokens failed", len(batch.token_ids), exc_info=error)
        return self._run_halves(with_ids(batch), error)

    def _run_halves(self, batch: Batch, error: Exception) -> StepOutput:
        """Run a batch that failed with `error` in two parts, and each that fails likewise."""
        middle = _middle(batch, error)
        if middle is None:
            _log.error("one row of %d tokens failed alone: %r", len(batch.token_ids), error)
            return _failed(batch, error)
        outputs: list[StepOutput] = []
        for start, stop in ((0, middle), (middle, len(batch.token_ids))):
            half = part(batch, start, stop)
            try:
                outputs.append(self.runner.prepare(half)())
            except CancelledError:
                raise
            except Exception as again:  # noqa: BLE001  as above
                outputs.append(self._run_halves(half, again))
            if len(batch.context_lens) == 1 and outputs[-1].failed:
                return _failed(batch, error)
        return _joined(*outputs, num_rows=int(np.searchsorted(batch.query_starts, middle)))


def _middle(batch: Batch, error: Exception) -> int | None:
    """The token to begin the second half with; None if the batch is not to be divided."""
    num_tokens, between = len(batch.token_ids), batch.query_starts[1:-1]
    if len(between):
        return int(between[np.argmin(np.abs(between - num_tokens / 2))])
    return num_tokens // 2 if num_tokens > 1 and _is_out_of_memory(error) else None


def _is_out_of_memory(error: Exception) -> bool:
    # torch has a class of its own for this on a GPU only.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _failed(batch: Batch, error: Exception) -> StepOutput:
    """The output of a batch of one row that failed."""
    message = "the forward pass ran out of memory" if _is_out_of_memory(error) else "the forward pass failed"
    num_samples = len(batch.samples)
    batch.sampled.fill(-1)
    return StepOutput(token_ids=[-1] * num_samples, logprobs=[None] * num_samples, failed={0: message})


def _joined(first: StepOutput, second: StepOutput, *, num_rows: int) -> StepOutput:
    """Of two parts, the output of the whole; the second begins with row `num_rows`, or within a row."""
    return StepOutput(
        token_ids=[*first.token_ids, *second.token_ids],
        logprobs=[*first.logprobs, *second.logprobs],
        prompt_logprobs=[*first.prompt_logprobs, *second.prompt_logprobs],
        embeddings=[*first.embeddings, *second.embeddings],
        failed=first.failed | {num_rows + row: message for row, message in second.failed.items()},
        forward_s=first.forward_s + second.forward_s,
        sample_s=first.sample_s + second.sample_s,
    )
