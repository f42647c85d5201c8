"""The scikit-learn faces of `solve`: `TopKClassifier` and `MultilabelClassifier`, and metrics of label sets.

What all estimators of the package share is here: kernels by name, labels and weights, fitted attributes and
warnings.  Importing this file loads nothing; its modules load scikit-learn, which takes longer than all else.
"""
