"""Many rows, workers, runs and versions: seconds, memory and the limits on it."""
