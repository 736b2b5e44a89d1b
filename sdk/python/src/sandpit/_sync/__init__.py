"""Programs without async and await. Made from _async."""
