"""The `radish` command; each of its commands is a module with `OPTIONS`, a Struct, and `run(options)`."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from app.cli import CommandFailedError, OneLineParser, add_options, read_options

# Imported when asked for: `radish --help` must not wait for torch.
_COMMANDS = {
    "serve": ("app.serve", "serve a model over the OpenAI API"),
    "selfcheck": ("app.selfcheck", "check that answers do not depend on what else the server does"),
    "bench": ("app.bench", "measure a server: closed-loop load at several levels of concurrency"),
    "tune": ("app.tune", "measure this machine's GPU for the kernels of attention"),
    "top": ("app.top", "watch a running server in the terminal"),
    "chat": ("app.terminal_chat", "talk to a running server in the terminal"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code (1: it failed, 2: it was called wrongly)."""
    listing = "\n".join(f"  {name:9} {summary}" for name, (_, summary) in _COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="radish",
        usage="radish COMMAND [OPTIONS]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=f"commands:\n{listing}\n\n`radish COMMAND --help` lists the options of one.",
    )
    parser.add_argument("command", choices=_COMMANDS, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.add_argument("options", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    called = parser.parse_args(arguments)

    module, summary = _COMMANDS[called.command]
    command = importlib.import_module(module)
    parser = OneLineParser(prog=f"radish {called.command}", description=summary)
    add_options(parser, command.OPTIONS)
    options = read_options(parser.parse_args(called.options), command.OPTIONS)
    try:
        return int(command.run(options))
    except CommandFailedError as error:
        print(f"radish {called.command}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
