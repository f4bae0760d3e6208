"""Keywords that some readers pass over: those of other versions of JSON Schema, and mere annotations."""

from __future__ import annotations

from typing import Final

from grammars.schema.document import Draft, Schema

_SINCE: Final = {
    "const": Draft.DRAFT6,
    "contains": Draft.DRAFT6,
    "propertyNames": Draft.DRAFT6,
    "if": Draft.DRAFT7,
    "then": Draft.DRAFT7,
    "else": Draft.DRAFT7,
    "$recursiveRef": Draft.DRAFT2019,
    "dependentRequired": Draft.DRAFT2019,
    "dependentSchemas": Draft.DRAFT2019,
    "maxContains": Draft.DRAFT2019,
    "minContains": Draft.DRAFT2019,
    "unevaluatedItems": Draft.DRAFT2019,
    "unevaluatedProperties": Draft.DRAFT2019,
    "$dynamicRef": Draft.DRAFT2020,
    "prefixItems": Draft.DRAFT2020,
}
_UNTIL: Final = {"dependencies": Draft.DRAFT7, "$recursiveRef": Draft.DRAFT2019}
_ANNOTATIONS: Final = ("contentEncoding", "contentMediaType")


def may_be_passed_over(schema: Schema, keyword: str) -> bool:
    """Whether a keyword asks for nothing in the version that a schema declares (none: in the latest)."""
    draft = schema.resource.draft or Draft.DRAFT2020
    return draft < _SINCE.get(keyword, draft) or draft > _UNTIL.get(keyword, draft) or keyword in _ANNOTATIONS
