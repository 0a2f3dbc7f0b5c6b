"""Vectors of entities and relations, reports of communities"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
blob = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql")


def upgrade() -> None:
    op.create_table(
        "graph_vector",
        sa.Column("id", big_id, primary_key=True, autoincrement=True),
        sa.Column("generation_id", big_id, sa.ForeignKey("generation.id", ondelete="CASCADE"), nullable=False),
        sa.Column("item", sa.String(400), nullable=False),
        sa.Column("digest", blob, nullable=False),
        sa.Column("lang", sa.String(8), nullable=False),
        sa.Column("vector", blob, nullable=False),
        sa.UniqueConstraint("generation_id", "item"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "graph_report",
        sa.Column("id", big_id, primary_key=True, autoincrement=True),
        sa.Column("generation_id", big_id, sa.ForeignKey("generation.id", ondelete="CASCADE"), nullable=False),
        sa.Column("community", sa.String(32), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("data", blob, nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.UniqueConstraint("generation_id", "community"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("graph_report")
    op.drop_table("graph_vector")
