"""The tables and figures of the average top-k loss.

Paper: Fan et al., 2017.
"""
