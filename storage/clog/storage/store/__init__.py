"""The filesystem, behind one narrow contract. The only package that imports fsspec.

- `contract`: the contract, its axioms and errors, and code that all stores share;
- `opening`: roots by URL, and the logs below them;
- `local`, `memory`, `remote`: the implementations; `kinds` has a module for each remote kind;
- `failures`: errors of systems and clients, made ours; `conformance`: the axioms as checks.

Reads need no exclusive create, so stores look for one only at the first create.
"""

from clog.storage.store.contract import Store
from clog.storage.store.opening import open_store, store_at

__all__ = ["Store", "open_store", "store_at"]
