"""What can go wrong with the native step runtime."""

from __future__ import annotations


class NativeUnavailableError(RuntimeError):
    """The runtime cannot serve here; the message says why, for the log."""


class NativeStepError(RuntimeError):
    """The runtime refused a step: an id or place in it is out of range."""
