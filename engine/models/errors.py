"""What goes wrong when a model is loaded."""

from __future__ import annotations


class ModelError(ValueError):
    """A model that cannot be served: the message names the file, and the tensor or the field at fault."""
