"""The formats of JSON Schema as regular languages: each text accepted is valid, to the letter of its RFC.

Where a format is not regular or its full form is seldom meant, a part of it stands for it (an IRI is
written as a URI, an internationalised host name in ASCII). Formats that are not in the standard say
nothing, as it has it.
"""

from __future__ import annotations

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
_CLOCK = "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"
_DAYS = "(?:[0-9]{1,9}D|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?)"
_DURATION = f"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,9}}W)"

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


_HOSTNAME = f"(?:{_label(63)}(?:\\.{_label(63)}){{0,2}}|{_label(30)}(?:\\.{_label(30)}){{0,7}})"
_LOCAL_CHAR = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_PCT = "%[0-9A-Fa-f]{2}"
_UNRESERVED = "A-Za-z0-9._~\\-"
_SUB = "!$&'()*+,;="
_PCHAR = f"(?:[{_UNRESERVED}{_SUB}:@]|{_PCT})"
_REG_NAME = f"(?:[{_UNRESERVED}{_SUB}]|{_PCT})*"
_AUTHORITY = f"(?:(?:[{_UNRESERVED}{_SUB}:]|{_PCT})*@)?(?:\\[{_IPV6}\\]|{_REG_NAME})(?::[0-9]{{0,5}})?"
_QUERY = f"(?:\\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_ABEMPTY = f"(?:/{_PCHAR}*)*"
_ABSOLUTE = f"/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
_ROOTLESS = f"{_PCHAR}+(?:/{_PCHAR}*)*"
_NO_COLON = f"(?:[{_UNRESERVED}{_SUB}@]|{_PCT})+(?:/{_PCHAR}*)*"
_URI = f"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}{_ABEMPTY}|{_ABSOLUTE}|{_ROOTLESS}|){_QUERY}"
_RELATIVE = f"(?://{_AUTHORITY}{_ABEMPTY}|{_ABSOLUTE}|{_NO_COLON}|){_QUERY}"

_VARCHAR = "[A-Za-z0-9_]"
_VARSPEC = f"{_VARCHAR}(?:\\.?{_VARCHAR})*(?::[1-9][0-9]{{0,2}}|\\*)?"
_LITERALS = "[\\x21\\x23\\x24\\x26\\x28-\\x3B\\x3D\\x3F-\\x5B\\x5D\\x5F\\x61-\\x7A\\x7E]"
_URI_TEMPLATE = f"(?:{_LITERALS}|{_PCT}|\\{{[+#./;?&]?{_VARSPEC}(?:,{_VARSPEC})*\\}})*"

_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_HEX = "[0-9A-Fa-f]"

# Expressions without groups in groups.
_RX_ATOM = r"(?:[0-9A-Za-z _,:;<>=!@#%&~`\"'-]|\\[dDwWsStnr.*+?()\[\]{}|^$/\\]|\.|\[\^?[0-9A-Za-z _.]+\])"
_RX_TIMES = r"(?:[*+?]|\{[0-9]\}|\{[0-9],\})?"
_RX_SEQUENCE = f"(?:{_RX_ATOM}{_RX_TIMES})*"
_RX_GROUP = f"\\((?:\\?:)?{_RX_SEQUENCE}(?:\\|{_RX_SEQUENCE})*\\)"
_RX_BODY = f"(?:(?:{_RX_ATOM}|{_RX_GROUP}){_RX_TIMES})*"

# RFC 5321 with a dot-atom of at most 63 characters before the @, which is what people have.
_LOCAL = f"{_LOCAL_CHAR}(?:\\.?{_LOCAL_CHAR}){{0,31}}"
_EMAIL = f"{_LOCAL}@(?:{_HOSTNAME}|\\[(?:{_IPV4}|IPv6:{_IPV6})\\])"

_PATTERNS = {
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": f"(?:{_URI}|{_RELATIVE})",
    "iri-reference": f"(?:{_URI}|{_RELATIVE})",
    "uri-template": _URI_TEMPLATE,
    "uuid": f"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",
    "json-pointer": _POINTER,
    "regex": f"\\^?{_RX_BODY}(?:\\|{_RX_BODY})*\\$?",
    "relative-json-pointer": f"(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})",
}
# Supersets of what some validator may take for the format, for the complement.
_WIDER = {
    "time": "[0-9:.,+Zz\\-]*",
    "date-time": "[0-9]{4}-[^\\n]*[Tt _][^\\n]*",
    "duration": "P.*",
    "uri": "[^:]*:[^\\n]*",
    "iri": "[^:]*:[^\\n]*",
    "uri-reference": "[^\\n]*",
    "iri-reference": "[^\\n]*",
    "uri-template": "[^\\n]*",
    "hostname": "[0-9A-Za-z.\\-]*",
    "idn-hostname": "[^\\n]*",
    "email": "[^\\n]*@[^\\n]*",
    "idn-email": "[^\\n]*@[^\\n]*",
    "regex": "(?:.|\\n)*",
}


@cache
def format_language(name: str) -> tuple[Regex, Regex] | None:
    """The texts we write for a format, and all that may count as it; None for names not in the standard."""
    if name not in _PATTERNS:
        return None
    exact = full_language(_PATTERNS[name])
    return exact, full_language(_WIDER[name]) if name in _WIDER else exact
