"""How fast the store is, and how it grows."""
