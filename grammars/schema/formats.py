"""The formats of JSON Schema as regular languages: each text accepted is valid, to the letter of its RFC.

Where a format is not regular or its full form is seldom meant, a part of it stands for it (no leap second,
no quoted name before the @, host names in letters that need no context). Formats that are not in the
standard say nothing, as it has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from grammars.regular.ast import Regex
from grammars.regular.patterns import full_language

_TWO = "[0-9]{2}"
# There is no year 0000 in most programming languages, nor a leap second.
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP}-02-29)"
)
_OFFSET = "(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_TIME = f"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{{1,9}})?{_OFFSET}"
# With fewer digits than RFC 3339 allows: readers have at most 999,999,999 days, or 2^31 seconds in a day.
_HOURS, _MINUTES, _SECONDS = "[0-9]{1,5}H", "[0-9]{1,7}M", "[0-9]{1,9}S"
_CLOCK = f"T(?:{_HOURS}(?:{_MINUTES}(?:{_SECONDS})?)?|{_MINUTES}(?:{_SECONDS})?|{_SECONDS})"
_MONTHS = "[0-9]{1,5}M(?:[0-9]{1,8}D)?"
_DAYS = f"(?:[0-9]{{1,8}}D|{_MONTHS}|[0-9]{{1,4}}Y(?:{_MONTHS})?)"
_DURATION = f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,5}}W)"

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = f"(?:{_OCTET}\\.){{3}}{_OCTET}"
_H16 = "[0-9A-Fa-f]{1,4}"
_LS32 = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    f"(?:(?:{_H16}:){{6}}{_LS32}"
    f"|::(?:{_H16}:){{5}}{_LS32}"
    f"|(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}"
    f"|(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}"
    f"|(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}"
    f"|(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}"
    f"|(?:(?:{_H16}:){{0,6}}{_H16})?::)"
)

# RFC 1123, with fewer long labels than 253 characters would hold, and without labels that claim to be
# encoded (`xn--`): whether they decode is not regular. Without a sum of lengths the automaton stays small.
_AN, _ANH = "[A-Za-z0-9]", "[A-Za-z0-9-]"


def _label(size: int) -> str:
    plain = f"{_AN}(?:{_ANH}{{0,{size - 4}}}{_AN})?"
    hyphen = f"-{_AN}(?:{_ANH}{{0,{size - 5}}}{_AN})?"
    return f"{_AN}(?:{_AN}|{_ANH}(?:{plain}|{hyphen}))?"


def _host(label: Callable[[int], str], dots: int = 0) -> str:
    return f"(?:{label(63)}(?:\\.{label(63)}){{{dots},2}}|{label(30)}(?:\\.{label(30)}){{{dots},7}})"


# Small letters and ideographs that are valid in any place (RFC 5892), do not combine, and are written from
# left to right.
_LETTERS = (
    "\\u00DF-\\u00F6\\u00F8-\\u00FFāăąćĉċčďđēĕėęěĝğġģĥħĩīĭįĵķĺļľłńņňōŏőœŕŗřśŝşšţťŧũūŭůűųŵŷźżž"
    "\\u03AC-\\u03CE\\u0430-\\u045F\\u3041-\\u3096\\u30A1-\\u30FA\\u4E00-\\u9FFF\\uAC00-\\uD7A3"
)


def _idn_label(size: int) -> str:
    # Each takes at most five characters of the ASCII form, which starts with four.
    return f"(?:{_label(size)}|[{_LETTERS}]{{1,{(size - 4) // 5}}})"


_HOSTNAME, _IDN_HOSTNAME = _host(_label), _host(_idn_label)


def _ranges(*ranges: tuple[int, int]) -> str:
    return "".join(f"{chr(low)}-{chr(high)}" for low, high in ranges)


# RFC 3987, without what only directs how other characters are written.
_UCS = _ranges(
    (0xA0, 0x200D),
    (0x2010, 0x2029),
    (0x202F, 0xD7FF),
    (0xF900, 0xFDCF),
    (0xFDF0, 0xFFEF),
    *((plane, plane + 0xFFFD) for plane in range(0x10000, 0xE0000, 0x10000)),
    (0xE1000, 0xEFFFD),
)
_PRIVATE = _ranges((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_PCT = "%[0-9A-Fa-f]{2}"
_SUB = "!$&'()*+,;="


def _uri_and_relative(more: str = "", more_in_query: str = "") -> tuple[str, str]:
    """The grammar of RFC 3986, with further characters where names are free (RFC 3987)."""
    unreserved = f"A-Za-z0-9._~\\-{more}"
    pchar = f"(?:[{unreserved}{_SUB}:@]|{_PCT})"
    name = f"(?:[{unreserved}{_SUB}]|{_PCT})*"
    future = f"[Vv][0-9A-Fa-f]{{1,4}}\\.[A-Za-z0-9._~\\-{_SUB}:]+"
    host = f"(?:\\[(?:{_IPV6}|{future})\\]|{name})"
    authority = f"(?:(?:[{unreserved}{_SUB}:]|{_PCT})*@)?{host}(?::[0-9]{{0,5}})?"
    query = f"(?:\\?(?:{pchar}|[/?{more_in_query}])*)?(?:#(?:{pchar}|[/?])*)?"
    network = f"//{authority}(?:/{pchar}*)*"
    absolute = f"/(?:{pchar}+(?:/{pchar}*)*)?"
    rootless = f"{pchar}+(?:/{pchar}*)*"
    no_colon = f"(?:[{unreserved}{_SUB}@]|{_PCT})+(?:/{pchar}*)*"
    return (
        # Not all readers take one without a path.
        f"[A-Za-z][A-Za-z0-9+.-]*:(?:{network}|{absolute}|{rootless}){query}",
        f"(?:{network}|{absolute}|{no_colon}|){query}",
    )


_URI, _RELATIVE = _uri_and_relative()
_IRI, _IRI_RELATIVE = _uri_and_relative(_UCS, _PRIVATE)

_VARCHAR = f"(?:[A-Za-z0-9_]|{_PCT})"
# Not all readers take a name that starts with an escape, or has a dot, nor a length of four digits.
_VARSPEC = f"[A-Za-z0-9_]{_VARCHAR}*(?::[1-9][0-9]{{0,2}}|\\*)?"
_LITERALS = f"[\\x21\\x23\\x24\\x26-\\x3B\\x3D\\x3F-\\x5B\\x5D\\x5F\\x61-\\x7A\\x7E{_UCS}{_PRIVATE}]"
_URI_TEMPLATE = f"(?:{_LITERALS}|{_PCT}|\\{{[+#./;?&]?{_VARSPEC}(?:,{_VARSPEC})*\\}})*"

_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_HEX = "[0-9A-Fa-f]"

# Expressions without groups in groups.
_RX_ATOM = r"(?:[0-9A-Za-z _,:;<>=!@#%&~`\"'-]|\\[dDwWsStnr.*+?()\[\]{}|^$/\\]|\.|\[\^?[0-9A-Za-z _.]+\])"
_RX_TIMES = r"(?:[*+?]|\{[0-9]\}|\{[0-9],\})?"
_RX_SEQUENCE = f"(?:{_RX_ATOM}{_RX_TIMES})*"
_RX_GROUP = f"\\((?:\\?:)?{_RX_SEQUENCE}(?:\\|{_RX_SEQUENCE})*\\)"
_RX_BODY = f"(?:(?:{_RX_ATOM}|{_RX_GROUP}){_RX_TIMES})*"

_ATEXT = "A-Za-z0-9!#$%&'*+/=?^_`{|}~\\-"


def _email(more: str, most: int, host: str) -> str:
    """RFC 5321 with a dot-atom of at most 63 bytes before the @, which is what people have."""
    char = f"[{_ATEXT}{more}]"
    return f"{char}(?:\\.?{char}){{0,{most - 1}}}@{host}"


# Many readers want a dot in the host, and no address in its place.
_EMAIL = _email("", 32, _host(_label, dots=1))
_IDN_EMAIL = f"(?:{_EMAIL}|{_email(_LETTERS, 16, _host(_idn_label, dots=1))})"

# Those of the standard, and a few that Pydantic has.
_PATTERNS = {
    "email": _EMAIL,
    "idn-email": _IDN_EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _IDN_HOSTNAME,
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "iri": _IRI,
    "uri-reference": f"(?:{_URI}|{_RELATIVE})",
    "iri-reference": f"(?:{_IRI}|{_IRI_RELATIVE})",
    "uri-template": _URI_TEMPLATE,
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    **{
        f"uuid{version}": f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ABab]{_HEX}{{3}}-{_HEX}{{12}}"
        for version in range(1, 9)
    },
    "ipvanyaddress": f"(?:{_IPV4}|{_IPV6})",
    "json-pointer": _POINTER,
    "regex": f"\\^?{_RX_BODY}(?:\\|{_RX_BODY})*\\$?",
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})",
}
# Supersets of what some validator may take for the format, for the complement. Some look for an @ only; of
# those for all scripts, some know nothing.
_ANY = "[\\s\\S]*"
_WIDER = {
    "time": "[0-9:.,+Zz\\-]*",
    "date-time": f"[0-9]{{4}}-{_ANY}[Tt _]{_ANY}",
    "duration": f"P{_ANY}",
    "uri": f"[^:]*:{_ANY}",
    "iri": _ANY,
    "uri-reference": _ANY,
    "iri-reference": _ANY,
    "uri-template": _ANY,
    "hostname": "[0-9A-Za-z.\\-]*",
    "idn-hostname": _ANY,
    "email": f"{_ANY}@{_ANY}",
    "idn-email": _ANY,
    "regex": _ANY,
    "ipvanyaddress": _ANY,
    **{f"uuid{version}": _ANY for version in range(1, 9)},
}


@cache
def format_language(name: str) -> tuple[Regex, Regex] | None:
    """The texts we write for a format, and all that may count as it; None for other names."""
    if name not in _PATTERNS:
        return None
    exact = full_language(_PATTERNS[name])
    return exact, full_language(_WIDER[name]) if name in _WIDER else exact
