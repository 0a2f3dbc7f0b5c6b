"""What chunks say for the graph, and changes that people made to it"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
blob = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), "mysql")


def upgrade() -> None:
    op.create_table(
        "chunk_graph",
        sa.Column("chunk_id", big_id, sa.ForeignKey("chunk.id", ondelete="CASCADE"), primary_key=True,
                  autoincrement=False),
        sa.Column("recipe", sa.String(64), nullable=False),
        sa.Column("data", blob, nullable=False),
        sa.Column("rounds", sa.Integer(), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("dropped", sa.Integer(), nullable=False),
        sa.Column("calls", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )  # fmt: skip
    op.create_table(
        "graph_edit",
        sa.Column("id", big_id, primary_key=True, autoincrement=True),
        sa.Column("kb_id", big_id, sa.ForeignKey("knowledge_base.id", ondelete="CASCADE"), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("source", sa.String(160), nullable=False),
        sa.Column("target", sa.String(160), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("create_time", sa.DateTime(), nullable=False),
        sa.UniqueConstraint("kb_id", "kind", "source", "target"),
    )
    op.create_table(
        "graph_summary",
        sa.Column("generation_id", big_id, sa.ForeignKey("generation.id", ondelete="CASCADE"), primary_key=True,
                  autoincrement=False),
        sa.Column("entity", sa.String(160), primary_key=True),
        sa.Column("digest", blob, nullable=False),
        sa.Column("text", sa.Text().with_variant(mysql.LONGTEXT(), "mysql"), nullable=False),
        sa.Column("tokens", sa.Integer(), nullable=False),
    )  # fmt: skip
    op.add_column("knowledge_base", sa.Column("graph_options", sa.JSON(), server_default="{}", nullable=False))
    op.add_column("generation", sa.Column("graph_version", sa.Integer(), server_default="0", nullable=False))
    op.create_index("ix_chunk_text_hash", "chunk", ["text_hash"])


def downgrade() -> None:
    op.drop_index("ix_chunk_text_hash", "chunk")
    op.drop_column("generation", "graph_version")
    op.drop_column("knowledge_base", "graph_options")
    op.drop_table("graph_summary")
    op.drop_table("graph_edit")
    op.drop_table("chunk_graph")
