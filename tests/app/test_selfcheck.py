"""`radish selfcheck` finds what differs, and nothing where nothing does."""

from __future__ import annotations

from app.selfcheck import check
from engine.batch import SampleRow
from engine.config import Config
from engine.engine import Engine
from engine.errors import ConfigError
from tests.fakes import fake_engine


def load(config: Config) -> Engine:
    """A fake model whose pools have 8 pages a MiB."""
    if config.kv_memory == 1:
        raise ConfigError("kv_memory: too small")
    engine, _ = fake_engine(
        num_pages=8 * config.kv_memory or 4096,
        max_batch_tokens=config.max_batch_tokens,
        prefix_cache=config.prefix_cache,
    )
    return engine


async def test_a_right_engine_passes() -> None:
    told: list[str] = []
    found = await check(Config(), load, lambda stage, fraction: told.append(stage))
    assert found == {"warm": 0, "batched": 0, "chunked": 0, "preempted": 0}
    ways = ("with an empty cache", "with a warm cache", "all at once", "in chunks", "in a small pool")
    assert told == [f"Asking {way}" for way in ways]


async def test_what_depends_on_the_batch_is_found() -> None:
    """A model that says something else in small batches."""

    def load_wrong(config: Config) -> Engine:
        engine = load(config)

        def script(row: SampleRow) -> int | None:
            return ord("?") if config.max_batch_tokens == 16 and row.position % 7 == 0 else None

        engine._loop._runner.runner.script = script  # type: ignore[attr-defined]  # it is a fake
        return engine

    found = await check(Config(), load_wrong, lambda stage, fraction: None)
    assert found == {"warm": 0, "batched": 0, "chunked": 12, "preempted": 0}
