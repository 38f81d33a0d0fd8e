"""torch.compile, autocast, devices without float64, fp16 training, and memory."""

import numpy as np
import pytest
import torch

import gdpo
from gdpo.core import backend
from gdpo.core.estimators import METHODS

ALL = sorted(METHODS)
BOUNDS = [(0, 1)] * 3


def rewards(rows=64, seed=0, missing=False):
    generator = torch.Generator().manual_seed(seed)
    values = torch.rand(rows, 3, generator=generator)
    values[:, 0] = (values[:, 0] > 0.5).float()
    values[8:16] = 0.7  # a tied group
    if missing:
        values[torch.rand(rows, 3, generator=generator) < 0.2] = float("nan")
    return values


def compiled(method, backend_name, **options):
    torch._dynamo.reset()
    return torch.compile(
        lambda x: gdpo.advantages(x, 8, method, bounds=BOUNDS, **options), fullgraph=True, backend=backend_name
    )


@pytest.mark.parametrize("method", ALL)
def test_one_graph_without_a_break(method):
    """fullgraph=True raises where the compiler would have to leave the graph."""
    function = compiled(method, "eager", weights=[1.0, -0.5, 2.0])
    for missing in (False, True):
        values = rewards(missing=missing)
        expected = gdpo.advantages(values, 8, method, bounds=BOUNDS, weights=[1.0, -0.5, 2.0])
        torch.testing.assert_close(function(values), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ALL)
def test_no_value_is_looked_at_off_the_cpu(method):
    """Tensors on the meta device have no values, so whatever would synchronise with a GPU raises here."""
    values = torch.empty(64, 3, device="meta")
    with pytest.raises(RuntimeError, match="meta"):
        float(values.sum())
    options = {"bounds": BOUNDS, "include": torch.ones(64, dtype=torch.bool, device="meta")}
    for weights in (None, [1.0, -0.5, 2.0], torch.ones(64, 3, device="meta")):
        assert gdpo.advantages(values, 8, method, weights, **options).shape == (64,)
        found = gdpo.estimate(values.half(), 8, method, weights, **options)
        assert found.contributions.shape == (64, 3)
        assert found.advantages.dtype == torch.float16


@pytest.mark.slow
@pytest.mark.parametrize("method", ["gdpo", "grpo", "rvpo"])
def test_generated_code(method):
    function, values = compiled(method, "inductor"), rewards(missing=True)
    found = function(values)
    torch.testing.assert_close(found, gdpo.advantages(values, 8, method, bounds=BOUNDS), rtol=0, atol=1e-6)
    assert (function(torch.full((64, 3), 0.7)) == 0).all()


@pytest.mark.parametrize("method", ALL)
def test_autocast_changes_nothing(method):
    values = rewards(missing=True).bfloat16()
    alone = gdpo.estimate(values, 8, method, bounds=BOUNDS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = gdpo.estimate(values, 8, method, bounds=BOUNDS)
    for name in ("advantages", "contributions", "normalized", "std"):
        assert torch.equal(getattr(inside, name), getattr(alone, name)), name


@pytest.mark.parametrize("method", ALL)
def test_a_device_without_float64(method, monkeypatch):
    """As on MPS: statistics in float32 with compensated sums still see a tenth on an offset of 100,000."""
    values = (rewards(4096) + 1e5).double().float()
    expected = gdpo.advantages(values.double(), 8, method, bounds=[(1e5, 1e5 + 1)] * 3)
    monkeypatch.setattr(backend, "NO_FLOAT64", {"mps", "cpu"})
    found = gdpo.estimate(values, 8, method, bounds=[(1e5, 1e5 + 1)] * 3)
    assert found.advantages.dtype == found.std.dtype == torch.float32
    torch.testing.assert_close(found.advantages.double(), expected, rtol=0, atol=2e-5)
    assert (found.advantages[8:16] == 0).all()


def test_compensated_sums():
    """1 + 1e-8 a million times: a plain float32 running sum stays at 1."""
    from gdpo.core.groups import _total

    values = torch.full((1_000_001, 1), 1e-8, dtype=torch.float32)
    values[0] = 1.0
    assert abs(float(_total(values, 0)) - 1.01) < 1e-7


def test_fp16_training_stays_finite_without_custom_fwd():
    """Advice to wrap the function with torch.amp.custom_fwd(cast_inputs=float32) changes nothing here."""
    wrapped = torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)(
        lambda values: gdpo.advantages(values, 8, "gdpo")
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    inputs, losses = torch.randn(64, 4), []
    for step in range(10):
        values = rewards(seed=step, missing=True).half()
        values[:, 2] *= 1000
        with torch.autocast("cpu", dtype=torch.float16):
            advantages = gdpo.advantages(values, 8, "gdpo")
            assert advantages.dtype == torch.float16
            assert advantages.isfinite().all()
            torch.testing.assert_close(advantages.float(), wrapped(values).float(), rtol=0, atol=2e-3)
            log_probability = torch.log_softmax(model(inputs), -1)[:, 0]
            loss = -(advantages.detach() * log_probability).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_no_gradient_flows_back():
    values = rewards().requires_grad_()
    assert not gdpo.advantages(values, 8).requires_grad


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_out_and_in_place(library):
    values = rewards(missing=True) if library == "torch" else rewards(missing=True).numpy()
    expected = gdpo.advantages(values, 8)
    out = torch.empty(64) if library == "torch" else np.empty(64, dtype=np.float32)
    assert gdpo.advantages(values, 8, out=out) is out
    assert (out == expected).all()
    wide = torch.empty(64, dtype=torch.float64) if library == "torch" else np.empty(64)
    assert (gdpo.advantages(values, 8, out=wide) == expected).all()
    gdpo.advantages(values, 8, out=values[:, 1])  # the caller's own buffer
    assert (values[:, 1] == expected).all()
    for wrong in (out[:3], [0.0] * 64, torch.zeros(64, dtype=torch.int64), np.zeros(64, dtype=bool)):
        with pytest.raises(gdpo.Error, match=r"out is a .*shape \(64,\)"):
            gdpo.advantages(values, 8, out=wrong)
    with pytest.raises(gdpo.Error, match="no option 'out'"):
        gdpo.estimate(values, 8, out=out)


def test_memory_is_twice_the_input_at_most():
    """65,536 x 8 float32 is 2 MiB; NumPy's allocations are traced."""
    import tracemalloc

    values = np.random.default_rng(0).random((65_536, 8)).astype(np.float32)
    gdpo.advantages(values, 16)
    tracemalloc.start()
    gdpo.advantages(values, 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 2 * values.nbytes
