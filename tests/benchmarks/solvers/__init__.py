"""Passes and seconds of losses, methods and kernels, beside their peers."""
