"""What is still to be deleted in vector stores"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "doomed_space",
        sa.Column("generation_id", big_id, primary_key=True, autoincrement=False),
        sa.Column("kb_id", big_id, nullable=False),
        sa.Column("kb_uid", sa.String(32), nullable=False),
        sa.Column("vs_type", sa.String(50), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("doomed_space")
