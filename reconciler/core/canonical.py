"""Canonical JSON: one text for one value, so that digests and stored payloads compare.

ASCII escapes (NUL and lone surrogates stay storable on every database), sorted keys, no blanks, no NaN.
"""

from __future__ import annotations

import hashlib
import json
from typing import Final

from reconciler.errors import InvalidInput

_ENCODER: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: object) -> str:
    """Return *value* as canonical JSON.

    Raises:
        InvalidInput: *value* holds something that JSON hasn't (NaN, infinities, objects), or nests too deep.
    """
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"cannot write the value as JSON: {error}") from None
    except RecursionError:
        raise InvalidInput("cannot write the value as JSON: it is nested too deep") from None


def content_digest(value: object) -> str:
    """Return the SHA-256 of *value* as canonical JSON, in hex."""
    return text_digest(canonical_json(value))


def text_digest(canonical: str) -> str:
    """Return the SHA-256 of a text that is canonical JSON already, in hex."""
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()
