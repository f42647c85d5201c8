"""What many problems share of a block.

Work on tiles goes through one reading for all of them (`tile_work`).  The dual variables of every head lie
beside each other (`heads`).
"""
