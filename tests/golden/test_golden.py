"""What smidgen computes is what it computed when the numbers were written down.

Bit for bit on the machine that wrote them, nearly so on others. A number that is meant to
change is written anew with `python -m tests.golden.write`, and the changelog says why.
"""

from __future__ import annotations

import pytest
import torch

from tests.golden import pinning
from tests.golden.cases import CASES
from tests.golden.write import numbers_of

pytestmark = pytest.mark.filterwarnings("ignore")


# Where the last bit of another processor is enough for another result.
_BASIS = "eigenvalues that are equal up to rounding have no basis of their own"
UNSTABLE = {
    "laplace-conv-categorical-4-ekfac": _BASIS,
    "laplace-conv-gaussian-2-ekfac": _BASIS,
    "finetune-bert": "biases of attention keys have no gradient but rounding, which Adam scales up",
    "selector-sparse-kfac-curvature": "scores that are equal up to rounding are ranked by it",
}


@pytest.fixture(autouse=True)
def _one_thread():
    """Sums are split among threads, and so depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_a_number_is_as_it_was(name):
    case = CASES[name]
    known = pinning.read(case.group)
    assert name in known["cases"], "never written down: python -m tests.golden.write"
    same = pinning.machine() == known["machine"]
    if not same and name in UNSTABLE:
        pytest.skip(UNSTABLE[name])
    # The link of a calibration is an answer that was asked for, not a number.
    numbers = {
        key: value for key, value in numbers_of(name).items() if key != "tuning link"
    }
    found = pinning.differences(
        numbers,
        known["cases"][name],
        relative=case.relative,
        bitwise=same,
        sums=case.portable,
    )
    assert not found, "\n".join(found)


def test_every_number_has_a_case():
    groups = {each.group for each in CASES.values()}
    assert {each.stem for each in pinning.NUMBERS.glob("*.json")} == groups
    names = {name for group in groups for name in pinning.read(group)["cases"]}
    assert names == set(CASES)
