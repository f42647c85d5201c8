"""Faults planted into the product; each must be found by a history: python -m tests.simulation --planted."""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.simulation.history import Lived, Plan, live, shortest, told


@dataclass(frozen=True)
class Planted:
    """A change: in `where` (module:function) the text `before` becomes `after`; a seed of a mix finds it."""

    name: str
    where: str
    before: str
    after: str
    seed: int
    mix: str = "wide"

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the product have the fault until the block ends."""
        module_name, _, path = self.where.partition(":")
        module = importlib.import_module(f"topline.{module_name}")
        found: Any = module
        for part in path.split("."):
            found = inspect.getattr_static(found, part)
        function = inspect.unwrap(found)
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.before) != 1:
            raise LookupError(f"{self.name}: {self.where} has not once {self.before!r}")
        names = dict(vars(module))
        exec(compile(source.replace(self.before, self.after), module_name, "exec"), names)
        genuine = function.__code__
        function.__code__ = inspect.unwrap(names[path.rpartition(".")[2]]).__code__
        try:
            yield
        finally:
            function.__code__ = genuine

    def found(self, seeds: range, *, as_found: bool) -> Lived | None:
        """Return the first history that finds the fault, as short as it gets or as it was; or None."""
        with self.in_place():
            for seed in seeds:
                lived = live(Plan.of(seed, self.mix))
                if lived.violation is not None:
                    return lived if as_found else shortest(lived)
        return None


#: What histories found in the product, by their seeds at the time; the last eight found it in the simulation.
FOUND = {
    2017: "a slow candidate took a tenure whose record had been dropped",
    2520: "the last version stopped without a word at the record of a removal",
    102189: "a model was deleted by hand while somebody read it from a bucket",
    109814: "checkpoints were dropped for newer ones while they were read, and a run was given up",
    142162: "staging was pruned while its writer went on with it and committed",
    143252: "an import found its staging pruned, and had to begin again",
    10820: "a reader that could not hold a dataset read on, and it was removed",
    38284: "a pruning that was stopped met a dataset that a removal had taken meanwhile",
    47688: "the last version lost a race against a pin and stopped without a word",
    53455: "a training that was stopped put its checkpoint in the place of that of whoever took over",
    207663: "a request that came late put the record of a dropped checkpoint again",
    211542: "a power cut left the head of a record and not the record",
    152204: "a model was held after it was deleted, and read as a damaged one",
    154158: "pruning met an error of the disk and did not say so in the store's words",
    567685: "a model that was deleted as it was looked up passed for one that was never finished",
    665311: "a removal followed a decision that a power cut undid",
    100524: "a woken process slept on, and others waited for it",
    143292: "the same",
    24557: "the rename of a file that was removed as it was written met an error that no disk has",
    63168: "the last version entered a lease that it had lost, and had not yet looked",
    98704: "the last version discards a model whose record's folder cannot be synced",
    26742: "what an edit left behind without locks was looked for before its day of grace was over",
    326456: "what forgetting erases at once had been hidden by a pruning before, and a reader missed it",
    661477: "an edit found its units missing after a twin had stored them and they had been forgotten",
}

_LOG, _LEASE, _LOCAL = "storage.stores.commit_log", "storage.stores.lease", "storage.stores.local"
_SEALED, _KEPT, _MODELS = "storage.stores.sealed", "storage.runs.checkpoints", "storage.models"
_PLAN = "storage.retention"

PLANTED = (
    Planted(
        "a record replaces another",
        f"{_SEALED}:put_marked",
        "store.put_if_absent(path, sealed(path, record))",
        "store.write_bytes(path, sealed(path, record)) is None",
        4,
    ),
    Planted(
        "every record counts as one's own",
        f"{_SEALED}:put_marked",
        "bool(unsealed(store, path).get(_WRITER) == record[_WRITER])",
        "True",
        4,
    ),
    Planted(
        "a record whose answer was lost is another's",
        f"{_SEALED}:put_marked",
        "bool(unsealed(store, path).get(_WRITER) == record[_WRITER])",
        "False",
        547,
    ),
    Planted("a log leaves a number out", f"{_LOG}:CommitLog.append", "range(seen + 1,", "range(seen + 2,", 2),
    Planted(
        "who loses a race does not look at the winner",
        f"{_LOG}:CommitLog.append",
        "return seq\n        if unique is not None and",
        "return seq\n        if False and",
        471,
    ),
    Planted("a silent holder loses its lease at once", f"{_LEASE}:_is_free", ">= terms.expiry", ">= 2.0", 18),
    Planted("a holder sends no heartbeat", f"{_LEASE}:_keep", "_beat(lease, count, terms.clock)", "pass", 90),
    Planted(
        "a lease is not lost to a later tenure",
        f"{_LEASE}:Lease.is_held",
        "not self.store",
        "True or self.store",
        267,
    ),
    Planted(
        "records of tenures are dropped",
        f"{_LEASE}:_tidy",
        '"beat", "done", "lock"',
        '"beat", "done", "lock", "json"',
        2017,
    ),
    Planted(
        "a candidate ignores a number that is taken",
        f"{_LEASE}:_is_taken",
        "or not put_own",
        "or None is put_own",
        4,
    ),
    Planted(
        "a folder is not put on the disk",
        f"{_LOCAL}:LocalStore._make_folders",
        "_sync_folder(folder.parent)",
        "pass",
        47,
    ),
    Planted(
        "a record is not put on the disk",
        f"{_LOCAL}:LocalStore._placed",
        "_sync_folder(target.parent)",
        "pass",
        13,
    ),
    Planted(
        "bytes are not put on the disk", f"{_LOCAL}:LocalStore._placed", "os.fsync(file.fileno())", "pass", 10
    ),
    Planted(
        "a deletion is not put on the disk",
        f"{_LOCAL}:LocalStore._delete",
        "_sync_folder(place.parent)",
        "pass",
        1881,
    ),
    Planted("pruning takes what is read", f"{_PLAN}:_Pruning._alone", "yield held and not", "yield not", 12),
    Planted(
        "who cannot hold what it reads reads on",
        "storage.stores.lease:_locked",
        "kind & fcntl.LOCK_NB and not create",
        "not create",
        3225,
        "close",
    ),
    Planted(
        "pruning a bucket gives no grace",
        f"{_PLAN}:_Pruning._may_be_read",
        "is_after(since, self.now - GRACE)",
        "False",
        122,
    ),
    Planted(
        "pruning takes what a writer goes on with",
        f"{_PLAN}:_Pruning._may_be_read",
        "since = bury(self.store, folder, item.why)",
        "return False",
        763,
        "close",
    ),
    Planted(
        "a writer goes on where something was given up",
        "storage.datasets.info:folder_to_write",
        "not store.exists(join(folder, TOMBSTONE))",
        "True",
        5087,
        "close",
    ),
    Planted(
        "a model that is deleted by hand in a bucket goes at once",
        f"{_MODELS}:delete_model",
        "if alone and store.locks:",
        "if alone:",
        777,
        "close",
    ),
    Planted(
        "who reads dropped checkpoints does not look again",
        f"{_KEPT}:latest_checkpoint",
        "if checkpoint_rounds(store, run_id) != rounds:",
        "if False:",
        190,
        "close",
    ),
    Planted(
        "pruning decides on a champion",
        f"{_PLAN}:_Pruning._decided_to_delete",
        "if item.name in (standing.champion, standing.previous, *standing.pinned):",
        "if False:",
        37,
    ),
    Planted(
        "pruning takes what was committed after its plan",
        f"{_PLAN}:_Pruning._alone",
        "and not self._committed_meanwhile(item)",
        "",
        325,
    ),
    Planted(
        "a model goes without a decision",
        f"{_PLAN}:_Pruning._model",
        "self._decided_to_delete(item)",
        "pass",
        74,
    ),
    Planted(
        "pruning overlooks marks",
        f"{_PLAN}:referred_contents",
        "found |= UnitRef.from_json(unsealed(store, path)).places",
        "pass",
        197,
    ),
    Planted("the last checkpoint goes with the others", f"{_KEPT}:_prune", "[:-KEPT]", "[:]", 5),
    Planted("a checkpoint's own folder is a stray", f"{_KEPT}:stray_folders", "!= folder", "== folder", 5),
    Planted(
        "a decision is taken under any number",
        f"{_MODELS}:record_decision",
        "log.append_as(entry.seq, entry.to_json())",
        "log.append(entry.to_json())",
        63,
    ),
    Planted(
        "a model is discarded where its answer is lost",
        f"{_MODELS}:save_model",
        "    model_log(",
        "    with whole_or_nothing(store, _arrays_folder(name)):\n        model_log(",
        749,
    ),
    Planted(
        "a removal is no record that the last version can name",
        "storage.datasets.info:Removal.to_json",
        '"digest": self.dataset.partition("-")[2], ',
        "",
        2520,
    ),
    Planted(
        "what forgetting leaves behind is not looked for",
        "pipeline.ingest.editing:forget",
        "tuple(_mentions(store, names, contents))",
        "()",
        181,
    ),
    Planted(
        "every model counts as deleted",
        f"{_MODELS}:_is_deleted",
        "return store",
        "return not store",
        5,
    ),
)


def find_all(histories: int, *, as_found: bool) -> int:
    """Look for every planted fault from its seed on, print the history that finds it; 1 if there is none."""
    missed = 0
    for planted in PLANTED:
        lived = planted.found(range(planted.seed, planted.seed + histories), as_found=as_found)
        missed += lived is None
        print(f"{planted.name}: " + ("not found" if lived is None else told(lived)))
    print(f"{len(PLANTED)} planted faults, {missed} not found")
    return 1 if missed else 0
