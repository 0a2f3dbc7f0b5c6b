"""Alembic's entry: migrates through the connection that the service hands over."""

from alembic import context

from server.db.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
    compare_type=True,
)
context.run_migrations()
