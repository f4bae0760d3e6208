"""What an answer tells of its prompt where that is asked for: token ids and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from app.logprobs import PromptLogprobs, prompt_logprobs
from app.protocol import SamplingFields
from engine.request import Request
from engine.tokenizer import Tokenizer


@dataclass(slots=True)
class PromptReport:
    """Of one submitted prompt."""

    request: Request
    tokenizer: Tokenizer
    show_ids: bool
    """Whether token ids are told, those of the output too."""
    num_top: int | None
    """Of how many likeliest tokens log-probabilities are told; None tells none at all."""
    _logprobs: PromptLogprobs | None = field(default=None, init=False)

    def token_ids(self) -> list[int] | UnsetType:
        return self.request.prompt if self.show_ids else UNSET

    async def write_logprobs(self) -> None:
        """To be called once there was an update: they are complete then."""
        if self.num_top is not None and self._logprobs is None:
            entries = self.request.prompt_logprobs
            self._logprobs = await prompt_logprobs(self.tokenizer, entries, self.num_top)

    def logprobs(self) -> PromptLogprobs | UnsetType:
        """Those that were written."""
        return UNSET if self._logprobs is None else self._logprobs


def prompt_report(fields: SamplingFields, request: Request, tokenizer: Tokenizer) -> PromptReport:
    return PromptReport(request, tokenizer, fields.return_token_ids or False, fields.prompt_logprobs)
