"""The public data sets: under which names their files are looked for, and where copies come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from scipy import sparse

from tests.reproduce import formats
from tests.reproduce.formats import Examples
from topline.pipeline.errors import InputError


@dataclass(frozen=True)
class Source:
    """A data set.

    Attributes
    ----------
    name : as tables say it.
    files : where each file lies below the data folder; a name without .gz stands for the unpacked file too.
    what : what a file holds, for messages.
    origin : where public copies come from.
    d : number of features.
    read : reads one file.
    join : puts several files together.
    """

    name: str
    files: tuple[str, ...]
    what: str
    origin: str
    d: int
    read: Any
    join: Any = None

    def load(self, paths: Sequence[Path]) -> Any:
        """Read the set from its files."""
        read = [self.read(path, self.what, self.d) for path in paths]
        return read[0] if self.join is None else self.join(read)


def stacked(parts: Sequence[Examples]) -> Examples:
    """Put files that were published as parts of one set below one another."""
    X = np.concatenate([part.X for part in parts])
    return Examples(X, np.concatenate([part.y for part in parts]), tuple(len(part.y) for part in parts))


def in_letter_order(path: Path, what: str, d: int) -> Examples:
    """Read letter.scale with letter.scale.t below it: 15,000 rows for training and 5,000 for the test."""
    found = formats.label_first(path, what, d)
    if len(found.y) != LETTER_ROWS:
        raise InputError(
            f"{path} has {len(found.y):,} rows; letter.scale and letter.scale.t together have {LETTER_ROWS:,}"
        )
    return Examples(found.X, found.y, (LETTER_TRAIN, LETTER_ROWS - LETTER_TRAIN))


def mulan(paths: Sequence[Path], d: int) -> Examples:
    """Read the ARFF files of a multilabel set, the last path being the XML file of its labels."""
    found = [formats.several_labels(path, paths[-1], d) for path in paths[:-1]]
    if len(found) == 1:
        return found[0]
    X = sparse.vstack([part.X for part in found]).tocsr()
    return Examples(X, np.concatenate([part.y for part in found]), tuple(len(part.y) for part in found))


LETTER_ROWS, LETTER_TRAIN = 20_000, 15_000
UCI = "the UCI repository (archive.ics.uci.edu)"
PENN = "the Penn Machine Learning Benchmarks (github.com/EpistasisLab/pmlb)"
KEEL = "KEEL (sci2s.ugr.es/keel)"
LIBSVM = "LIBSVM's data page (www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets)"
SWERSKY = "the page of K. Swersky et al. (people.cs.umass.edu/~marlin/data.shtml)"
MULAN = "Mulan (github.com/tsoumakas/mulan)"
#: The thesis has 645 training examples of medical, which are Mulan's test part.
MEDICAL = ("medical-test", "medical-train")
COREL_LABELS = "multilabel_corel5k/Corel5k.xml"

_SOURCES = (
    Source(
        "letter", ("letter/letter_libsvm_20000.txt.gz",),
        "rows of a label and 16 features: letter.scale with letter.scale.t below it", LIBSVM, 16,
        in_letter_order,
    ),
    Source(
        "aloi", ("aloi/aloi.scale.gz",), "rows of a label and index:value pairs of 128 features", LIBSVM, 128,
        formats.libsvm_classes,
    ),
    Source(
        "usps", ("usps/usps.npz",), "arrays X_train, y_train, X_test and y_test of USPS",
        "the files zip.train and zip.test of www.stat.stanford.edu/~tibs/ElemStatLearn, or the R package"
        " ElemStatLearn", 256, formats.usps_digits,
    ),
    Source(
        "mnist",
        tuple(
            f"mnist/{part}-{kind}-ubyte.gz"
            for part in ("train", "t10k")
            for kind in ("images-idx3", "labels-idx1")
        ),
        "an array of MNIST in the IDX format", "Y. LeCun's page (yann.lecun.com/exdb/mnist)", 784,
        formats.idx_array, partial(formats.mnist_digits, d=784),
    ),
    Source(
        "news20", ("news20_counts/news20_counts.npz",),
        "word counts of 20 newsgroups as a CSR matrix: data, indices, indptr, shape and y",
        "the 19,997 messages of UCI's 20 Newsgroups, counted", 1, formats.word_counts,
    ),
    *(
        Source(
            f"silhouettes{side}", (f"silhouettes/caltech101_silhouettes_{side}_split1.mat",),
            f"the .mat file of {side} x {side} silhouettes", SWERSKY, side**2, formats.silhouettes,
        )
        for side in (28, 16)
    ),
    *(
        Source(
            name, (f"{folder}/{folder}.tsv.gz",), f"a table of {d} features and a target", PENN, d,
            formats.target_table,
        )
        for name, folder, d in (
            ("optdigits", "optdigits", 64), ("australian", "australian", 14), ("splice", "splice_3class", 60),
            ("spambase", "spambase", 57), ("madelon", "madelon", 500),
        )
    ),
    Source(
        "monks", ("monks/monks-3.train.arff", "monks/monks-3.test.arff"),
        "the ARFF file of a Monk's problem, class first", UCI, 6, formats.class_first_arff, stacked,
    ),
    Source(
        "splice_libsvm", ("splice_libsvm/splice_1000.txt.gz",), "rows of a label and 60 bases", LIBSVM, 60,
        formats.label_first,
    ),
    Source(
        "german", ("german/german.data-numeric.gz",), "the numeric table of Statlog's German credit", UCI, 24,
        formats.statlog,
    ),
    *(
        Source(name, (f"{name}/{name}.dat",), f"KEEL's table of {what}", KEEL, d, formats.keel)
        for name, what, d in (
            ("titanic", "Class, Age, Sex and Survived", 3), ("phoneme", "five harmonics and a class", 5),
        )
    ),
    Source(
        "housing", ("housing/housing.csv.gz",), "a table of 13 features and medv",
        "the R package mlbench (BostonHousing)", 13, formats.last_column_csv,
    ),
    Source(
        "abalone", ("abalone/abalone.data.gz",), "UCI's table of sex, seven sizes and rings", UCI, 8,
        formats.abalone,
    ),
    *(
        Source(
            name, (*(f"multilabel_{name}/{part}.arff.gz" for part in parts), f"multilabel_{name}/{name}.xml"),
            "Mulan's ARFF file and the XML file of its labels", MULAN, d,
            formats.as_it_is, partial(mulan, d=d),
        )
        for name, parts, d in (
            ("emotions", ("emotions-train", "emotions-test"), 72), ("yeast", ("yeast",), 103),
            ("enron", ("enron",), 1001), ("bibtex", ("bibtex",), 1836),
            ("scene", ("scene-train", "scene-test"), 294), ("medical", MEDICAL, 1449),
        )
    ),
    Source(
        "corel5k",
        (*(f"multilabel_corel5k/Corel5k-{part}-sparse.arff.gz" for part in ("train", "test")), COREL_LABELS),
        "Mulan's ARFF file and the XML file of its labels", MULAN, 499, formats.as_it_is,
        partial(mulan, d=499),
    ),
    *(
        Source(
            name, (f"synthetic_data/{file}.mat",), "x (n, 2) and y (n, 1) of a toy of 200 points",
            "the authors' code (github.com/YanboFan/learning-with-average-top-k-nips2017)", 2,
            formats.points_and_signs,
        )
        for name, file in (("toy_multimodal", "data4"), ("toy_imbalanced", "data6"))
    ),
    Source(
        "cpusmall", ("cpusmall/cpusmall_scale.txt.gz",), "rows of a target and 12 features", LIBSVM, 12,
        formats.libsvm_rows,
    ),
)  # fmt: skip
#: Every data set by its name.
SOURCES: Mapping[str, Source] = MappingProxyType({source.name: source for source in _SOURCES})


@dataclass(frozen=True)
class DataFiles:
    """Where the user's copies lie: folders, and single files that stand for the file of the same name.

    A single file may have any name where a table needs one file only.
    """

    places: tuple[Path, ...] = ()

    def check(self) -> None:
        """Refuse places that do not exist."""
        for place in self.places:
            if not place.exists():
                raise InputError(f"--data {place} does not exist: give a folder of data sets, or a file")

    def find(self, name: str, *, alone: bool = False) -> list[Path]:
        """Give the files of a data set in their order; InputError names the first that is missing.

        `alone` says that the table needs no other file, so that one given by any name is taken.
        """
        source = SOURCES[name]
        single = [place for place in self.places if place.is_file()]
        if alone and len(source.files) == 1 and len(single) == 1:
            return single
        return [self._find_file(source, file) for file in source.files]

    def has(self, name: str) -> bool:
        """Whether all files of a data set are there."""
        try:
            self.find(name)
        except InputError:
            return False
        return True

    def load(self, name: str, *, alone: bool = False) -> Any:
        """Read a data set."""
        return SOURCES[name].load(self.find(name, alone=alone))

    def _find_file(self, source: Source, file: str) -> Path:
        names = {Path(file).name, Path(file).name.removesuffix(".gz")}
        for place in self.places:
            tried = [place] if place.is_file() else _below(place, file)
            for path in tried:
                if path.is_file() and path.name in names:
                    return path
        where = " and ".join(map(str, self.places)) or "nothing (give --data DIR)"
        raise InputError(
            f"{source.name} needs {file} ({source.what}), looked for under {where}; copies come from"
            f" {source.origin}"
        )


def _below(folder: Path, file: str) -> list[Path]:
    """Give where a file may lie: below a folder of many sets or in the folder of just this one."""
    spellings = (file, file.removesuffix(".gz"))
    return [folder / part for word in spellings for part in (word, Path(word).name)]
