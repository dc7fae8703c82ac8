"""Key-value caches of our decoder and the arithmetic of their size."""
