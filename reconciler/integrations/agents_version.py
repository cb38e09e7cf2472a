"""Which versions of the OpenAI Agents SDK this integration was tested with. Imported before the SDK itself."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Final

from reconciler.integrations.agents_errors import SdkUnsupported

DISTRIBUTION: Final = "openai-agents"
# What is recorded when hangs on the order in which hooks fire, which the SDK doesn't promise: each minor version is
# tested before it is named here.
FIRST: Final = (0, 24)
BEFORE: Final = (0, 25)
RANGE: Final = f">={FIRST[0]}.{FIRST[1]},<{BEFORE[0]}.{BEFORE[1]}"


def require_sdk() -> str:
    """Return the SDK's version.

    Raises:
        SdkUnsupported: it is not installed, or outside the tested range.
    """
    try:
        found = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise SdkUnsupported(
            f"cannot use the OpenAI Agents SDK: {DISTRIBUTION} is not installed",
            hint=f'pip install "{DISTRIBUTION}{RANGE}", or this package with its extra "openai-agents"',
        ) from None
    match = re.match(r"(\d+)\.(\d+)", found)
    if match is None or not FIRST <= (int(match[1]), int(match[2])) < BEFORE:
        raise SdkUnsupported(
            f"cannot use {DISTRIBUTION} {found}: tested with {RANGE} only",
            detail={"found": found, "tested": RANGE},
            hint=f'pip install "{DISTRIBUTION}{RANGE}"',
        )
    return found
