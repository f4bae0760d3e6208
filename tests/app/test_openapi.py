"""The OpenAPI document is valid, complete, and true: schemathesis asks a real server what it says."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import hypothesis
import jsonschema
import pytest
import schemathesis
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from starlette.routing import Route

from app.openapi import OPERATIONS, document
from tests.app.harness import Served, chat_body, serving
from tests.fakes import assert_quiet

SCHEMA = schemathesis.openapi.from_dict(document())
NOT_OF_THE_API = {"/", "/docs", "/openapi.json", "/live", "/live/snapshot", "/page/schema"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a short context, in a thread of its own: schemathesis does not wait asynchronously."""
    found: list[str] = []
    started = threading.Event()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with serving(max_context=48) as served:
            found.append(served.url)
            started.set()
            await stop.wait()
            assert_quiet(served.engine)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    started.wait()
    yield found[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


@SCHEMA.parametrize()
@hypothesis.settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)
def test_every_operation_does_what_the_document_says(case: schemathesis.Case[Any], url: str) -> None:
    response = case.call(base_url=url)
    assert response.status_code < 500
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.not_a_server_error,
            content_type_conformance,
            response_schema_conformance,
        ],
    )


async def test_every_route_is_documented(served: Served) -> None:
    from_app = served.server.config.app.routes  # type: ignore[union-attr]  # it is the application
    routes = {re.sub(r":path\}", "}", route.path) for route in from_app if isinstance(route, Route)}
    assert routes - NOT_OF_THE_API == {operation.path for operation in OPERATIONS}


def validator(name: str) -> Any:
    described = document()
    schema = {"$ref": f"#/components/schemas/{name}", "components": described["components"]}
    return jsonschema.Draft202012Validator(schema)


async def test_what_is_sent_and_answered_is_of_its_types(served: Served) -> None:
    body = chat_body(logprobs=True, top_logprobs=2, max_tokens=3, return_token_ids=True)
    validator("ChatRequest").validate(body)
    answer = (await served.post("chat/completions", body)).json()
    validator("ChatCompletion").validate(answer)
    refused = (await served.post("chat/completions", body | {"n": 0})).json()
    validator("ErrorBody").validate(refused)
    assert not validator("ChatRequest").is_valid(body | {"n": 0})
    assert not validator("ChatRequest").is_valid(body | {"store": True})
    assert validator("ChatRequest").is_valid(body | {"store": False})


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.targets.add(f"#{value}")
            elif name in ("href", "src"):
                self.links.add(value or "")


async def test_the_page_shows_all_of_it_and_loads_nothing_from_elsewhere(served: Served) -> None:
    assert (await served.http.get("/openapi.json")).json() == document()
    page = (await served.http.get("/docs")).text
    links = _Links()
    links.feed(page)
    assert all(operation.path in page for operation in OPERATIONS)
    local = {link for link in links.links if link.startswith("#")}
    assert local <= links.targets
    assert links.links - local == {"/openapi.json", "/static/docs.css", "/static/radish.svg"}
    for link in links.links - local:
        assert (await served.http.get(link)).status_code == 200
