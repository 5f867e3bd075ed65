"""A real Postgres for a test."""
