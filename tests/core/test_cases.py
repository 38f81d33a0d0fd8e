"""Public trouble and whole batches judged by an independent reading of the formulas."""

import numpy as np
import pytest
import torch
from support import shared_cases

import gdpo
from gdpo.core.estimators import METHODS

OWN = ("gamma", "w_max", "symmetric", "threshold", "hard", "kappa")


def matrix(rows, library, dtype="float64"):
    values = np.array([[np.nan if v is None else float(v) for v in row] for row in rows])
    return torch.tensor(values).to(getattr(torch, dtype)) if library == "torch" else values.astype(dtype)


def numbers(values):
    return np.asarray(values.double() if isinstance(values, torch.Tensor) else values, dtype=float)


@pytest.mark.data
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("case", shared_cases("advantages.json"))
def test_public_trouble(case, library):
    if library == "numpy" and case["dtype"] == "bfloat16":
        pytest.skip("NumPy has no bfloat16")
    rewards = matrix(case["rewards"], library, case["dtype"])
    if case["error"]:
        said = {"A21": r"'reward_0' is inf at row 0", "A22": "2 were expected", "A23": "2 were expected"}
        with pytest.raises(gdpo.Error, match=said.get(case["id"], "4 is not a multiple of 3")):
            gdpo.advantages(rewards, case["groups"], case["method"], case["weights"])
        return
    found = gdpo.advantages(rewards, case["groups"], case["method"], case["weights"])
    assert found.dtype == rewards.dtype
    np.testing.assert_allclose(numbers(found), case["expect"], rtol=0, atol=case["tolerance"])


@pytest.mark.data
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("case", shared_cases("family.json"))
def test_family(case, method, library):
    own = METHODS[method].options
    options = {key: value for key, value in case["options"].items() if key not in OWN or key in own}
    found = gdpo.estimate(
        matrix(case["rewards"], library), case["groups"], method, case["weights"], bounds=case["bounds"], **options
    )
    expect = case["expect"][method]
    np.testing.assert_allclose(numbers(found.advantages), expect["advantages"], rtol=0, atol=case["tolerance"])
    np.testing.assert_allclose(numbers(found.contributions), expect["contributions"], rtol=0, atol=case["tolerance"])
