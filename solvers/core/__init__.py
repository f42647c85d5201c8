"""What every other room of the solvers is built on: the problem, states and results, rows, answers.

A `Problem` and a `SolverState` say what is solved and how far a run has come; operations go to the blocks and
`Answer`s come back, added along a fixed tree.  Its modules are imported one by one: those about features
by rows load compiled code, which the others do without.
"""
