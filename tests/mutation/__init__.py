"""Small changes to the product that its tests must notice.

`operators` finds the changes that a source allows, `targets` names the modules and the tests that hold
them, and `runner` makes each change in a copy of the checkout and runs those tests on it.
"""
