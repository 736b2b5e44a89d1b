"""Programs with async and await."""
