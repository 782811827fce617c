"""The command `clog`, outside of the package: on PyPI that name is somebody else's, and their
``clog/__init__.py`` hides ours.
"""

import signal


def main() -> None:
    """Runs the command line; the entry point of the distribution."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules are imported, Ctrl-C ends the process: nothing is there to put in order.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from clog.cli import main as run
    except ModuleNotFoundError as e:
        import clog

        other = getattr(clog, "__file__", None)
        if e.name != "clog.cli" or other is None:
            raise
        raise SystemExit(
            f"error: {other} belongs to another package named clog, which hides this one\nnext:"
            " pip uninstall clog (this one is called pyspark-clog), or use separate environments"
        ) from None
    run()


if __name__ == "__main__":  # As `spark-submit` runs it.
    main()
