"""Means and variances of pairs that forget old ones: what a linear regression takes."""

from __future__ import annotations


class Moments:
    """Weighted moments of pairs (x, y).

    Args:
        kept: weight of a pair against the one after it.
    """

    def __init__(self, kept: float) -> None:
        self._kept = kept
        self._weight = self._x = self._y = self._xx = self._xy = 0.0
        """Weighted sums of 1, x, y and of products."""

    @property
    def is_known(self) -> bool:
        """Whether there is any pair. Without one, nothing else may be asked for."""
        return self._weight > 0

    def add(self, x: float, y: float) -> None:
        self._weight = self._weight * self._kept + 1
        self._x = self._x * self._kept + x
        self._y = self._y * self._kept + y
        self._xx = self._xx * self._kept + x * x
        self._xy = self._xy * self._kept + x * y

    @property
    def means(self) -> tuple[float, float]:
        """Of x and of y."""
        return self._x / self._weight, self._y / self._weight

    @property
    def spread(self) -> tuple[float, float]:
        """The variance of x, and its covariance with y."""
        x, y = self.means
        return self._xx / self._weight - x * x, self._xy / self._weight - x * y
