"""Where the memory of a running server is: its peak, what of it is files, and what lies on huge pages.

    python ops/memory.py PID

Reads /proc/PID/status and smaps. Mappings of 32 MiB and more are listed one by one: weights and the pages
of keys and values are such, and have to lie on huge pages, on which a step is a fifth faster.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

_LARGE_KB: Final = 32 << 10
_HEAD: Final = re.compile(r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$")
_FIELD: Final = re.compile(r"^(\w+): +(\d+) kB$")


def mappings(pid: int) -> list[tuple[str, dict[str, int]]]:
    """Name (of anonymous memory: "") and fields in KiB of each mapping."""
    found: list[tuple[str, dict[str, int]]] = []
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        if head := _HEAD.match(line):
            found.append((head[1], {}))
        elif field := _FIELD.match(line):
            found[-1][1][field[1]] = int(field[2])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pid", type=int)
    pid = parser.parse_args().pid
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(("VmHWM", "VmRSS", "RssAnon", "RssFile")):
            name, kib, _ = line.split()
            print(f"{name:10}{int(kib) >> 10:8} MiB")
    print("anonymous mappings, MiB:    size  resident  on huge pages")
    small = [0, 0, 0]
    for name, fields in mappings(pid):
        if name.startswith("/"):
            continue
        sizes = [fields.get(key, 0) for key in ("Size", "Rss", "AnonHugePages")]
        if sizes[0] < _LARGE_KB:
            small = [total + size for total, size in zip(small, sizes, strict=True)]
        elif sizes[1]:
            print(f"  {name or 'mapped':20} {sizes[0] >> 10:10} {sizes[1] >> 10:9} {sizes[2] >> 10:14}")
    print(f"  {'smaller ones':20} {small[0] >> 10:10} {small[1] >> 10:9} {small[2] >> 10:14}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
