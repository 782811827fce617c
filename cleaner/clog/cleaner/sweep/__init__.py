"""Deleting files that no readable version needs: objects, documents, blocks of old commits."""
