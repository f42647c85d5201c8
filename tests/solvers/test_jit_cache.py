"""Kernels compiled before an update are not used after it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from topline.solvers.jit_cache import forget_stale_cache

INNER = """
from numba import njit

@njit(cache=True)
def value():
    return {value}
"""
OUTER = """
from numba import njit
from kernels.inner import value

@njit(cache=True)
def twice():
    return 2 * value()
"""
PROGRAM = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from topline.solvers.jit_cache import forget_stale_cache
if sys.argv[2] == "looks":
    forget_stale_cache(Path(sys.argv[1]) / "kernels")
from kernels.outer import twice
print(twice())
"""


def result(folder: Path, looks: str) -> int:
    words = [sys.executable, "-B", "-c", PROGRAM, str(folder), looks]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def test_a_kernel_goes_with_those_that_were_compiled_into_it(tmp_path: Path) -> None:
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "outer.py").write_text(OUTER)
    (package / "inner.py").write_text(INNER.format(value=1))
    assert result(tmp_path, "looks") == 2
    (package / "inner.py").write_text(INNER.format(value=30))
    # What Numba does by itself; once it minds inner files, this module has done its work.
    assert result(tmp_path, "trusts") == 2
    assert result(tmp_path, "looks") == 60


def test_what_is_up_to_date_stays(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("# njit\n")
    (tmp_path / "__pycache__").mkdir()
    kernel = tmp_path / "__pycache__" / "one.f-1.py311.nbi"
    kernel.touch()
    assert forget_stale_cache(tmp_path)
    kernel.touch()
    assert not forget_stale_cache(tmp_path)
    assert kernel.exists()
    (tmp_path / "two.py").write_text("y = 1\n")
    assert not forget_stale_cache(tmp_path), "it has no kernels"
    (tmp_path / "two.py").write_text("# njit\n")
    assert forget_stale_cache(tmp_path)
    assert not kernel.exists()
