"""What a log looks like and whether it is sound: describe, history, verify."""
