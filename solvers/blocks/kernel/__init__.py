"""What a block does with its rows where nobody holds the kernel matrix: scores, vertices, atoms.

`block` answers the requests of `topline.solvers.core.kernel_rows`; `products` has the kernel values.
"""
