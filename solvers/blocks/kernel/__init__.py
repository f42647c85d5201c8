"""What a block does with its rows where nobody holds the kernel matrix: scores, vertices, atoms.

`block` answers the requests of `topline.solvers.core.kernel_rows`; `products` has the kernel values.  Values
that are asked for again are kept, as far as a budget holds them.
"""
