"""Prompts as completions and embeddings take them: a text, texts, one list of ids, or several."""

from __future__ import annotations

from app.errors import bad_request
from app.state import AppState

Given = str | list[str | int | list[int]]
Prompt = str | list[int]

_MOST_IDS = 1 << 18


def listed(state: AppState, given: Given, *, field: str, most: int) -> list[Prompt]:
    """Every prompt of a request, in order.

    Args:
        field: what the request calls them, to name it in errors.
        most: so many are possible at once.

    Raises:
        ApiError: 400; one is empty, or they are of different kinds, or too many.
    """
    items: list[Prompt]
    if isinstance(given, str):
        items = [given]
    elif given and isinstance(given[0], int):
        _check_length(len(given), state.engine.max_context, field)
        items = [[item for item in given if isinstance(item, int)]]
        if len(items[0]) != len(given):
            raise bad_request(f"{field} mixes token ids with something else.", field)
    else:
        check_number(len(given), field=field, most=most)
        items = [item for item in given if not isinstance(item, int)]
        if len(items) != len(given) or len({type(item) for item in items}) > 1:
            raise bad_request(f"{field} mixes texts and lists of token ids.", field)
    if not items or not all(items):
        raise bad_request(f"{field} is empty.", field)
    return items


def _check_length(number: int, max_context: int, field: str) -> None:
    """Refuse so many token ids that to go through them would hold up others, also where most will be cut.

    Raises:
        ApiError: 400.
    """
    most = max(max_context, _MOST_IDS)
    if number > most:
        raise bad_request(
            f"This model's maximum context length is {max_context} tokens. However, the prompt has {number} "
            f"token ids; more than {most} are not read even where only the last are to be kept.",
            field,
            "context_length_exceeded",
        )


def check_number(number: int, *, field: str, most: int) -> None:
    """Raises ApiError 400 for more than `most` prompts, before anything is done for them."""
    if number > most:
        raise bad_request(f"There are {number} prompts; at most {most} are possible at once.", field)


async def encoded(
    state: AppState, prompt: Prompt, *, field: str, add_special: bool | None, keep: int | None
) -> list[int]:
    """The ids of a prompt.

    Args:
        add_special: of a text: add what the model wants around it; None does.
        keep: so many of the last ids; None keeps all.

    Raises:
        ApiError: 400; too long.
    """
    if isinstance(prompt, str):
        prompt = await state.encode_text(prompt, field=field, add_special=add_special is not False)
    return prompt if keep is None else prompt[-keep:]
