"""Keeps logs small: removes superseded records, expired tombstones and what retention lets go."""
