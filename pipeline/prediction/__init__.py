"""Predictions of a stored model: for new images, for new features, or for every row of a stored dataset.

`predict` describes images by the model's own backbone; `predict_features` reads rows from a file;
`predict_dataset` runs on Dask workers and stores its predictions beside the dataset.  An
`answers.AnswerRule` turns scores into classes.
"""

from __future__ import annotations

from topline.pipeline.prediction.files import Prediction
from topline.pipeline.prediction.of_datasets import BatchResult, predict_dataset
from topline.pipeline.prediction.of_features import FeaturesResult, predict_features
from topline.pipeline.prediction.of_images import PredictResult, predict
