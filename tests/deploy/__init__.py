"""Files of deploy/: loaded as their programs load them, and held to what their pages promise."""
