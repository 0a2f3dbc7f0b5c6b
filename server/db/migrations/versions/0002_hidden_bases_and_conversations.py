"""Hidden knowledge bases, attributes of files, canonical texts, conversations"""

import secrets

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_LONG = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")
_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.add_column("knowledge_base", sa.Column("uid", sa.String(32), nullable=False, server_default=""))
    op.add_column("knowledge_base", sa.Column("kind", sa.String(20), nullable=False, server_default=""))
    op.add_column("knowledge_base", sa.Column("expires", sa.Float(), nullable=True))
    op.add_column("knowledge_base", sa.Column("attributes", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("knowledge_base", sa.Column("parent_id", sa.BigInteger(), nullable=True))
    op.create_index("ix_knowledge_base_parent_id", "knowledge_base", ["parent_id"])
    op.add_column("knowledge_file", sa.Column("uid", sa.String(32), nullable=False, server_default=""))
    op.add_column("knowledge_file", sa.Column("attributes", sa.JSON(), nullable=False, server_default="{}"))
    op.add_column("chunk", sa.Column("enabled", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.add_column("message", sa.Column("feedback_score", sa.Integer(), nullable=False, server_default="-1"))
    op.add_column("message", sa.Column("feedback_reason", sa.Text(), nullable=False, server_default=""))
    for table in ("knowledge_base", "knowledge_file"):
        _fill_uids(table)
    op.create_index("ix_knowledge_base_uid", "knowledge_base", ["uid"], unique=True)
    op.create_index("ix_knowledge_file_uid", "knowledge_file", ["uid"])
    op.create_table(
        "file_batch",
        sa.Column("uid", sa.String(32), nullable=False),
        sa.Column("kb_id", _ID, nullable=False),
        sa.Column("file_uids", sa.JSON(), nullable=False),
        sa.Column("create_time", sa.DateTime(), nullable=False),
        sa.ForeignKeyConstraint(["kb_id"], ["knowledge_base.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("uid"),
    )
    op.create_index("ix_file_batch_kb_id", "file_batch", ["kb_id"])
    op.create_table(
        "conversation",
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("chat_type", sa.String(50), nullable=False),
        sa.Column("create_time", sa.DateTime(), nullable=False),
        sa.Column("update_time", sa.DateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "document_text",
        sa.Column("document_id", _ID, nullable=False, autoincrement=False),
        sa.Column("start", sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("text", _LONG, nullable=False),
        sa.ForeignKeyConstraint(["document_id"], ["document.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("document_id", "start"),
    )


def _fill_uids(name: str) -> None:
    table = sa.table(name, sa.column("id"), sa.column("uid"))
    connection = op.get_bind()
    for number in connection.scalars(sa.select(table.c.id)).all():
        connection.execute(sa.update(table).where(table.c.id == number).values(uid=secrets.token_hex(12)))


def downgrade() -> None:
    for name in ("document_text", "conversation", "file_batch"):
        op.drop_table(name)
    op.drop_index("ix_knowledge_file_uid", "knowledge_file")
    op.drop_index("ix_knowledge_base_uid", "knowledge_base")
    op.drop_index("ix_knowledge_base_parent_id", "knowledge_base")
    for table, columns in (
        ("message", ("feedback_reason", "feedback_score")),
        ("chunk", ("enabled",)),
        ("knowledge_file", ("attributes", "uid")),
        ("knowledge_base", ("parent_id", "attributes", "expires", "kind", "uid")),
    ):
        for column in columns:
            op.drop_column(table, column)
