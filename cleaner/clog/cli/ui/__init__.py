"""`clog ui`: logs in a browser, by a small server for this machine alone."""
