# Made from _async by scripts/sync.py: change that.
"""Programs with and await."""
