"""The tables of losses of label sets.

Paper: Lapin's thesis, tables 6.10 and 6.11.
"""
