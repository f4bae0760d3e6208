"""`radish top`: the live view of a running server in a terminal."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import httpx
import msgspec
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from app.cli import CommandFailedError
from app.live import Frame, Picture
from app.live_window import Percentiles
from engine.snapshot import NodeView, SequenceView
from engine.timeline import Span

_Meta = msgspec.Meta

_BAR = 40
_COLOURS = {
    "free": "grey42",
    "evictable": "green",
    "protected": "magenta",
    "private": "blue",
    "queued": "grey50",
    "prefill": "blue",
    "recompute": "yellow",
    "decode": "magenta",
    "stalled": "red",
}
_MOST_SEQUENCES = 12
_MOST_NODES = 16


class TopConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `radish top`."""

    base_url: Annotated[str, _Meta(description="Server to look at.")] = "http://127.0.0.1:8000"
    api_key: Annotated[str | None, _Meta(description="Key to send, where the server wants one.")] = None
    period: Annotated[
        float, _Meta(ge=0.1, le=2, description="Time between two looks.", extra={"unit": "s"})
    ] = 1.0
    once: Annotated[bool, _Meta(description="Print one picture and leave.")] = False


OPTIONS = TopConfig


def run(config: TopConfig) -> int:
    """Show the server until it stops or the user does; returns the exit code."""
    console = Console(file=sys.stdout)
    base_url = config.base_url.rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
    with httpx.Client(base_url=base_url, headers=headers, timeout=10) as client:
        ended: deque[SequenceView] = deque(maxlen=_MOST_SEQUENCES)
        with Live(
            console=console, screen=console.is_terminal and not config.once, auto_refresh=False
        ) as live:
            for frame in frames(client, config.period):
                ended += frame.news.ended
                live.update(render(frame.picture, ended), refresh=True)
                if config.once:
                    break
    return 0


def frames(client: httpx.Client, period_s: float) -> Iterator[Frame]:
    """The server's feed, until it ends.

    Raises:
        CommandFailedError: there is no such feed.
    """
    try:
        with client.stream("GET", "/live", params={"period": period_s}) as response:
            if response.is_error:
                raise CommandFailedError(f"{response.url} answered {response.status_code}")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    yield msgspec.json.decode(line[6:], type=Frame)
    except httpx.HTTPError as error:
        raise CommandFailedError(f"{client.base_url}: {error}") from error


def render(picture: Picture, ended: Iterable[SequenceView]) -> RenderableType:
    """A picture as it is shown, with the sequences that ended lately, the last one last."""
    recent = [*picture.sequences, *reversed(list(ended))]
    return Group(
        _numbers(picture),
        Panel(_Pages(picture), title=f"pages of {picture.page_size} tokens", title_align="left"),
        Panel(_tree(picture), title=f"radix tree, {picture.num_nodes} nodes", title_align="left"),
        Panel(_sequences(recent, picture.now), title="sequences", title_align="left"),
    )


def _numbers(picture: Picture) -> Table:
    rates, counters = picture.rates, picture.counters
    table = Table(box=None, expand=True)
    hits = counters.prefix_hits / counters.prefix_queries if counters.prefix_queries else 0.0
    columns = {
        picture.model: "",
        "tokens/s": f"{rates.generation_tokens:.1f}" if rates else "-",
        "running": str(picture.running),
        "waiting": str(picture.waiting),
        "first token p50/p99": _percentiles(picture.ttft),
        "between tokens p50/p99": _percentiles(picture.inter_token),
        "prefix hits": f"{hits:.0%}",
        "preempted": str(counters.preemptions),
    }
    for name in columns:
        table.add_column(name)
    table.add_row(*columns.values())
    return table


@dataclass(frozen=True, slots=True)
class _Pages:
    """A bar of all pages by state, no wider than there is room for, and their counts."""

    picture: Picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        pages = self.picture.pages
        counts = {
            "private": pages.private,
            "protected": pages.protected,
            "evictable": pages.evictable,
            "free": pages.free,
        }
        names = {"private": "private", "protected": "cached, in use", "evictable": "cached", "free": "free"}
        room = min(2 * _BAR, options.max_width) - len(counts)  # each may be rounded up
        bar, legend = Text(), Text()
        for state, count in counts.items():
            # What there is at all is seen, however little it is.
            width = max(round(room * count / pages.total), 1) if count else 0
            bar.append("█" * width, style=_COLOURS[state])
            legend.append("■ ", style=_COLOURS[state])
            legend.append(f"{names[state]} {count}   ")
        yield bar
        yield legend


def _tree(picture: Picture) -> RenderableType:
    if not picture.nodes:
        return Text("empty", style="dim")
    children: dict[int, list[NodeView]] = {}
    for node in picture.nodes:
        children.setdefault(node.parent, []).append(node)
    root = Tree("", hide_root=True, guide_style="dim")
    open_: list[tuple[Tree, NodeView]] = [(root, node) for node in reversed(children.get(0, []))]
    shown = 0
    while open_ and shown < _MOST_NODES:
        branch, node = open_.pop()
        label = Text(f"{node.tokens} tokens", style=_COLOURS["protected" if node.users else "evictable"])
        if node.users:
            label.append(f"  used by {node.users}: {', '.join(map(_short, node.requests))}", style="default")
        if node.text is not None:
            label.append(f"  {node.text!r}", style="dim")
        twig = branch.add(label)
        shown += 1
        open_ += [(twig, child) for child in reversed(children.get(node.id, []))]
    if picture.num_nodes > shown:
        root.add(Text(f"and {picture.num_nodes - shown} more", style="dim"))
    return root


def _sequences(sequences: list[SequenceView], now: float) -> RenderableType:
    if not sequences:
        return Text("none", style="dim")
    table = Table(box=None, expand=True)
    for name in ("request", "state", "prompt", "cached", "output", "pages", "time", ""):
        table.add_column(name)
    for sequence in islice(sequences, _MOST_SEQUENCES):
        end = sequence.finished or now
        table.add_row(
            _short(sequence.request),
            sequence.state,
            str(sequence.prompt_tokens),
            str(sequence.cached_tokens),
            str(sequence.output_tokens),
            str(sequence.pages),
            f"{end - sequence.arrived:.2f} s",
            _bar(sequence.spans, sequence.arrived, end),
        )
    return table


def _bar(spans: list[Span], start: float, end: float) -> Text:
    """What the sequence did from `start` to `end`, a character for each fortieth of that time."""
    text = Text()
    if not spans:
        return text.append("█" * _BAR, style=_COLOURS["queued"])
    for cell in range(_BAR):
        moment = start + (cell + 0.5) / _BAR * (end - start)
        span = next((span for span in spans if moment < span.end), spans[-1])
        text.append("█", style=_COLOURS[span.kind])
    return text


def _percentiles(found: Percentiles | None) -> str:
    return f"{1e3 * found.p50:.0f}/{1e3 * found.p99:.0f} ms" if found else "-"


def _short(request: str) -> str:
    return request.partition("-")[2][:6] or request
