"""SQL: tables, transactions, and all statements."""
