"""Short names of kernels, of which PyTorch's differ only behind their namespaces."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path

import pytest

from gswarm_tui.analysis.kernel_names import short_names

TRACE = Path(__file__).parents[1] / "data" / "traces" / "h200-iterations.json.gz"
NCU = (
    "void at::vectorized_elementwise_kernel<4, at::<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &, "
    "c10::Scalar, c10::Scalar, detail::ClampLimits)::[lambda() (instance 1)]::operator ()() const::"
    "[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], "
    "std::array<char *, 2>>(int, T2, T3)"
)


def test_kernels_of_a_real_trace_have_short_names_that_differ() -> None:
    events = json.loads(gzip.decompress(TRACE.read_bytes()))["traceEvents"]
    names = sorted({event["name"] for event in events if event.get("cat") == "kernel"})
    shown = dict(zip(names, short_names(names), strict=True))
    assert (max(map(len, names)), max(map(len, shown.values()))) == (608, 127)
    assert len(set(shown.values())) == len(names)
    assert {"(", ")", "::", "void "} <= {
        part for name in names for part in ("(", ")", "::", "void ") if part in name
    }
    assert not [name for name in shown.values() if "(" in name or "::" in name or "void " in name]
    assert "vectorized_elementwise_kernel<4, launch_clamp_scalar, array<char*, 2ul>>" in shown.values()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (NCU, "vectorized_elementwise_kernel<4, launch_clamp_scalar, array<char *, 2>>"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("saxpy(int, float, float *, float *)", "saxpy(int, float, float *, float *)"),
        ("", ""),
        ("(" * 100, "(" * 100),
    ],
)
def test_only_long_names_are_shortened(name: str, short: str) -> None:
    assert short_names([name]) == [short]


def test_names_that_would_be_alike_stay_whole() -> None:
    names = [
        f"void at::native::softmax_warp_forward<float, 10>(float*, {kind} const*, int)"
        for kind in ("int", "char")
    ]
    assert short_names([*names, NCU, NCU])[:2] == names
    assert short_names(names[:1]) == ["softmax_warp_forward<float, 10>"]


def test_crafted_names_take_no_time() -> None:
    began = time.process_time()
    for part in ("(", "()", "a::", "::{lambda(", "::[lambda() (instance ", "void ", "<", " "):
        short_names([part * (4000 // len(part))] * 500)
    short_names(["(" * 2000 + ")" * 2000] * 500)
    assert time.process_time() - began < 5
