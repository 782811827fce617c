"""What captures of databases share, whichever database it is: settings, tables, logs, comparing."""
