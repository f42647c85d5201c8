"""What is on disk and how it is found again.

A store is a folder or a prefix with

    commits/datasets/00000001.json   sealed records, put only where there is none: they make a dataset visible
    commits/registry/00000001.json   sealed decisions on models: who became champion, who did not, and why
    datasets/<key>/arrays/           Zarr 3 group: features, labels, split, sample_ids, class_names; where a
                                     row has several labels, also label_set_indptr, label_set_indices
    datasets/<key>/parts/            a Parquet file a unit, written last: the unit is done
    datasets/<key>/manifest.parquet  one row an image, in the order of the features' rows
    datasets/<key>/files.json        every file with size and SHA-256; its own digest is the dataset's
    models/m0001/00000001.json       sealed revisions of a model's record; the first makes it visible
    models/m0001/arrays/             Zarr group: weights, transforms, duals
    predictions/<key>-<token>/       Zarr group: best classes and scores of all rows, named by <key>.json
    leases/retrain/00000001.json     who works on the store; .beat while it lives, .done at its end
    leases/train-r0001/              who trains a run of an object store; of a local one runs/r0001/lock
    runs/r0001/                      run.json, history.jsonl, outcome.json
    runs/r0001/checkpoints/          a record and a Zarr group for each of the last two

Nothing that is visible is ever changed; nothing half-written is ever visible; nothing is pickled.
"""

from __future__ import annotations
