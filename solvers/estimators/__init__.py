"""The scikit-learn estimators `TopKClassifier` and `MultilabelClassifier`, and metrics of label sets.

Parts common to all estimators are here: kernels by name, labels and weights, fitted attributes and warnings.
Importing this package loads nothing; its modules load scikit-learn, the slowest import of all.
"""
