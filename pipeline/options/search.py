"""What is searched before training where that is asked for, or where nobody says how to train."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from topline.pipeline.errors import ConfigError
from topline.pipeline.options.train import Options, TrainConfig
from topline.solvers.names import default_k

#: What says how to train: any of these is one fit.
SETTLED = (
    "loss", "C", "k", "weights", "margins", "smoothing", "smoothing_kind", "average_top", "method", "kernel",
    "resume", "start_from",
)  # fmt: skip
#: Of these a search that is asked for leaves what is given.
LEFT = ("loss", "C", "k")


class SearchConfig(Options):
    """Whether loss, C and scaling are searched, and for which accuracy."""

    auto: bool | None = Field(
        default=None,
        description="Search loss, C and, of imported columns, scaling before training, with the work of"
        " six trainings at most, or 10 seconds of computing where that is more",
    )
    goal: str = Field(
        default="top-1",
        alias="for",
        description="Accuracy to search for: top-1, another such as top-3, top-k (5, or half of the classes)"
        " or macro, the mean over classes",
    )

    @field_validator("goal")
    @classmethod
    def _goal_is_known(cls, goal: str) -> str:
        if goal not in ("macro", "top-k") and not re.fullmatch(r"top-[1-9]\d*", goal):
            raise ValueError("use top-1, another number of guesses such as top-3, top-k or macro")
        return goal

    def guesses(self, m: int) -> int:
        """Return in how many guesses a row is right, for m classes; `ConfigError` where all rows are."""
        if self.goal == "macro":
            return 1
        k = default_k(m) if self.goal == "top-k" else int(self.goal.removeprefix("top-"))
        if k >= m:
            raise ConfigError(f"--for {self.goal} is always right of {m} classes: use a smaller number")
        return k

    def refuse_goal(self, *, searched: bool) -> None:
        """Raise `ConfigError` where an accuracy is named and nothing is searched for it."""
        if not searched and "goal" in self.model_fields_set:
            raise ConfigError(
                f"--for {self.goal} says what a search goes by, and nothing is searched: add --auto, or leave"
                " --for out"
            )

    def searches(self, train: TrainConfig) -> bool:
        """Return whether there is a search before a whole job trains with these options.

        `ConfigError` where one is asked for that leaves out what is given.
        """
        given = [name for name in SETTLED if name in train.model_fields_set]
        if not self.auto:
            found = self.auto is None and not given
            self.refuse_goal(searched=found)
            return found
        outside = [name for name in given if name not in LEFT]
        if outside:
            raise ConfigError(
                f"--auto searches loss, C and scaling of linear models: leave out"
                f" --{outside[0].replace('_', '-')} or --auto"
            )
        return True
