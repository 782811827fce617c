"""The command line `clog`: a log in a shell, without Spark."""


def main() -> None:
    """Runs the command line; the entry point of the distribution."""
    try:
        from clog.cli.app import app
    except ModuleNotFoundError as e:
        # The library does not need them, so they are an extra.
        if e.name not in ("typer", "rich"):
            raise
        from clog.storage.installation import install_extra

        raise SystemExit(f"the command line needs {e.name}: {install_extra('cli')}") from e
    app(prog_name="clog")
