"""Databases of PostgreSQL, captured: all tables at one transaction of theirs."""
