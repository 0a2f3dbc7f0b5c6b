"""Passwords of files"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("knowledge_file", sa.Column("password", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("knowledge_file", "password")
