"""The command line: options made from config fields, exit codes, one line for each failure."""

from __future__ import annotations

import argparse
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from app.__main__ import main
from app.bench import BenchConfig
from app.cli import add_options, read_options
from app.terminal_chat import ChatConfig
from engine.config import Config


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A field of every kind that has a form on a command line."""

    name: Annotated[str | None, Meta(description="100% of a name.")] = None
    code: Annotated[
        Annotated[str, Meta(pattern="^[a-z]+$", extra={"form": "letters"})] | None,
        Meta(description="Secret."),
    ] = None
    pool_size: Annotated[int, Meta(ge=1, le=9, description="How big.", extra={"unit": "MiB"})] = 3
    wait: Annotated[float, Meta(gt=0, description="How long.")] = 1.5
    share: Annotated[bool, Meta(description="Whether.")] = True
    kind: Annotated[Literal["a", "b"], Meta(description="Which.")] = "a"
    levels: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(description="Several.")] = (1, 8)


def parser_for(struct: type[msgspec.Struct]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_options(parser, struct)
    return parser


def parse(*arguments: str) -> Sample:
    return read_options(parser_for(Sample).parse_args(arguments), Sample)


def test_defaults_are_the_structs_own() -> None:
    assert parse() == Sample()


def test_every_kind_of_field_is_read() -> None:
    given = parse(
        *("--name", "x", "--code", "abc", "--pool-size", "9", "--wait", ".5", "--no-share", "--kind", "b"),
        *("--levels", "1, 2,3"),
    )
    assert given == Sample(
        name="x", code="abc", pool_size=9, wait=0.5, share=False, kind="b", levels=(1, 2, 3)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pool-size", "0"], "argument --pool-size: must be at least 1, not 0"),
        (["--pool-size", "10"], "argument --pool-size: must be at most 9, not 10"),
        (["--pool-size", "1.5"], "argument --pool-size: must be a whole number, not '1.5'"),
        (["--name", ""], "argument --name: must not be empty"),
        (["--code", "a1"], "argument --code: must be letters, not 'a1'"),
        (["--wait", "inf"], "argument --wait: must be finite, not inf"),
        (["--wait", "0"], "argument --wait: must be more than 0, not 0"),
        (["--wait", "nan"], "argument --wait: must be more than 0, not nan"),
        (["--wait", "soon"], "argument --wait: must be a number, not 'soon'"),
        (["--levels", "1,0"], "argument --levels: must be at least 1, not 0"),
        (["--levels", "1,,2"], "argument --levels: must be a whole number, not ''"),
        (["--kind", "c"], "argument --kind: invalid choice: 'c'"),
        (["--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_wrong_values_get_a_clear_message(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(*arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_help_shows_description_unit_and_default() -> None:
    text = " ".join(parser_for(Sample).format_help().split())
    assert "--pool-size MiB How big. (default: 3)" in text
    assert "--share, --no-share Whether. (default: on)" in text
    assert "--levels N,N Several. (default: 1,8)" in text
    assert "--name TEXT 100% of a name. --code TEXT Secret. --pool-size" in text
    assert "--kind {a,b} Which. (default: a)" in text


def test_a_field_without_a_form_is_refused() -> None:
    class Odd(msgspec.Struct):
        mapping: dict[str, int]

    with pytest.raises(TypeError, match="no command-line form"):
        add_options(argparse.ArgumentParser(), Odd)


@pytest.mark.parametrize("struct", [Config, BenchConfig, ChatConfig])
def test_every_option_is_documented(struct: type[msgspec.Struct]) -> None:
    text = parser_for(struct).format_help()
    for name in struct.__struct_fields__:
        assert f"--{name.replace('_', '-')}" in text
    for field in msgspec.json.schema(struct)["$defs"][struct.__name__]["properties"].values():
        assert " ".join(field["description"].split()) in " ".join(text.split())


def test_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out
    for command in ("serve", "bench", "chat"):
        assert f"\n  {command} " in shown


def test_a_missing_server_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    # Port 9 (discard) of the loopback address: nothing listens there.
    for command in ("bench", "chat"):
        assert main([command, "--base-url", "http://127.0.0.1:9"]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"radish {command}: ")
        assert "127.0.0.1:9" in line
