"""Pages of runs and models: served while somebody looks, or written to a file; they read, and never write."""
