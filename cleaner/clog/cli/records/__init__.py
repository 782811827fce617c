"""Commands over records: in, out, and the forms that they have outside."""
