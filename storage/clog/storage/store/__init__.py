"""The filesystem, behind one narrow contract. The only package that imports fsspec.

- `contract`: the contract, its axioms and errors, and what all stores share;
- `opening`: roots by URL, and the logs below them;
- `local`, `memory`, `remote`: the implementations; `kinds` has a module for each remote kind;
- `failures`: errors of systems and clients, as ours; `conformance`: the axioms as checks.

Reading needs no capability, so it is looked for at the first create.
"""

from clog.storage.store.contract import Store
from clog.storage.store.opening import open_store, store_at

__all__ = ["Store", "open_store", "store_at"]
