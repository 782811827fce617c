"""Commands over a log as a whole: create, alter, and their kin."""
