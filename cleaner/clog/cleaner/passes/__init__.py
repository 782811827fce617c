"""A cleaning pass, step by step:
which partition, what is dead, what is rewritten, how it is committed.
"""
