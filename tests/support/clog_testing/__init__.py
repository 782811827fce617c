"""A kit for tests of logs and of stores; ships with the library, so that others can use it.

- `counting`: a store that counts the requests it passes on;
- `faults`: a store that fails, crashes, repeats, delays and tears, as planned;
- `killing`: a process that dies at a chosen call of its store;
- `clocked`: a store whose objects bear the times of a clock;
- `conformance`: the axioms of a store as a class of pytest tests, to be run on any filesystem.

Only `conformance` needs pytest.
"""
