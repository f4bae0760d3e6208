"""The Grafana dashboard as code: `python ops/grafana/dashboard.py > ops/grafana/radish.json`.

Import the file in Grafana, or let it be provisioned; it asks for a Prometheus data source. Panels that only
use `vllm:` metrics work on vLLM's servers too, as vLLM's own dashboards work on this one.
"""

from __future__ import annotations

import json
from typing import Any

_COLUMNS, _HEIGHT = 3, 8
_WIDTH = 24 // _COLUMNS
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WHERE = '{model_name="$model_name"}'
_RATE = "[$__rate_interval]"


def _rate(metric: str) -> str:
    return f"sum(rate({metric}{_WHERE}{_RATE}))"


def _quantiles(metric: str) -> dict[str, str]:
    return {
        name: f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{_WHERE}{_RATE})))"
        for name, q in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
    }


def _means(parts: dict[str, str]) -> dict[str, str]:
    return {name: f"{_rate(f'{metric}_sum')} / {_rate(f'{metric}_count')}" for name, metric in parts.items()}


# Row, then panels: title, unit, queries by legend, whether they are stacked.
_PANELS: dict[str, list[tuple[str, str, dict[str, str], bool]]] = {
    "What clients feel": [
        ("Time to the first token", "s", _quantiles("vllm:time_to_first_token_seconds"), False),
        ("Time between tokens", "s", _quantiles("vllm:inter_token_latency_seconds"), False),
        ("Whole requests", "s", _quantiles("vllm:e2e_request_latency_seconds"), False),
        (
            "Finished requests",
            "reqps",
            {
                "{{finished_reason}}": (
                    f"sum by (finished_reason) (rate(vllm:request_success_total{_WHERE}{_RATE}))"
                )
            },
            True,
        ),
        (
            "Where the time goes (mean)",
            "s",
            _means(
                {
                    "queued": "vllm:request_queue_time_seconds",
                    "prefill": "vllm:request_prefill_time_seconds",
                    "decode": "vllm:request_decode_time_seconds",
                }
            ),
            True,
        ),
    ],
    "What the engine does": [
        (
            "Tokens per second",
            "short",
            {"generated": _rate("vllm:generation_tokens_total"), "prompt": _rate("vllm:prompt_tokens_total")},
            False,
        ),
        (
            "Requests",
            "short",
            {
                "running": f"sum(vllm:num_requests_running{_WHERE})",
                "waiting": f"sum(vllm:num_requests_waiting{_WHERE})",
            },
            True,
        ),
        (
            "Prefix cache hits",
            "percentunit",
            {"hits": f"{_rate('vllm:prefix_cache_hits_total')} / {_rate('vllm:prefix_cache_queries_total')}"},
            False,
        ),
        ("Pages by state", "short", {"{{state}}": f"sum by (state) (radish:pages{_WHERE})"}, True),
        ("Tokens of a step", "short", _quantiles("vllm:iteration_tokens_total"), False),
        (
            "Time of a step, by part (mean)",
            "s",
            {
                "{{part}}": (
                    f"sum by (part) (rate(radish:step_seconds_sum{_WHERE}{_RATE}))"
                    f" / sum by (part) (rate(radish:step_seconds_count{_WHERE}{_RATE}))"
                )
            },
            True,
        ),
    ],
    "What may go wrong": [
        (
            "Preemptions and evicted pages per second",
            "short",
            {
                "preemptions": _rate("vllm:num_preemptions_total"),
                "evicted pages": _rate("radish:evicted_pages_total"),
            },
            False,
        ),
        ("Event loop lag", "s", _quantiles("radish:loop_lag_seconds"), False),
        (
            "Grammars",
            "short",
            {
                "compiled per second": _rate("radish:grammar_compile_seconds_count"),
                "refused per second": _rate("radish:grammars_refused_total"),
            },
            False,
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's JSON model."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row, contents in _PANELS.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for index, (title, unit, queries, stacked) in enumerate(contents):
            place = {
                "x": index % _COLUMNS * _WIDTH,
                "y": y + index // _COLUMNS * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
            panels.append(_panel(len(panels) + 1, title, unit, queries, stacked, place))
        y += -(-len(contents) // _COLUMNS) * _HEIGHT
    return {
        "title": "Radish",
        "uid": "radish",
        "tags": ["radish", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "templating": {"list": [_source(), _model()]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(  # noqa: PLR0917  # what a panel is, in the table's order
    id_: int, title: str, unit: str, queries: dict[str, str], stacked: bool, place: dict[str, int]
) -> dict[str, Any]:
    custom = {
        "fillOpacity": 30 if stacked else 8,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "showPoints": "never",
    }
    return {
        "id": id_,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for index, (legend, expr) in enumerate(queries.items())
        ],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _model() -> dict[str, Any]:
    query = "label_values(vllm:generation_tokens_total, model_name)"
    return {
        "name": "model_name",
        "label": "Model",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "model_name"},
        "refresh": 2,
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2))
