"""${message}

Expand or contract, and why the order of program and schema is safe: say it here.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    ${downgrades if downgrades else "raise NotImplementedError"}


def would_lose(conn: sa.Connection) -> list[str]:
    """Return what a downgrade would lose, in words: what the columns and tables hold that it drops."""
    raise NotImplementedError
