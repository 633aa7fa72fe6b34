"""The tuning database: record types, schema, migrations and queries."""
