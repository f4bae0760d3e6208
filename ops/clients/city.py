"""The value that clients with types ask for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class City(BaseModel):
    """A city."""

    model_config = ConfigDict(extra="forbid")  # or a weak model goes on with properties of its own

    name: Annotated[str, Field(max_length=16)]
    size: Literal["small", "large"]
    people: Annotated[int, Field(ge=0, le=10**7)]
