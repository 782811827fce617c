"""The options of ``format("clog")``, from their text to typed settings."""
