"""Bindings to the NVIDIA driver's management library (NVML), and the meaning of its return codes."""

from __future__ import annotations

import importlib

from gswarm_agent.probes.gpus.vendor import VendorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeVar

    from gswarm_agent.frame import Number

    T = TypeVar("T")

SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED, NOT_FOUND, TIMEOUT, GPU_IS_LOST = 0, 2, 3, 6, 10, 15
ALL_LINKS = 0xFFFFFFFF

UNSUPPORTED = {
    2: "not supported by this GPU or driver (invalid argument)",
    3: "not supported by this GPU",
    4: "not permitted to this user",
    13: "the driver is too old: it lacks the function",
    25: "the driver is too old: it lacks this version of the function",
    26: "the driver no longer supports it",
}
"""nvmlReturn_t codes of lasting errors: retrying at each tick is useless."""

_REASONS = {
    9: "the NVIDIA driver isn't loaded on this node",
    10: "the driver timed out",
    15: "the GPU has fallen off the bus",
    16: "the GPU needs a reset",
    18: "the NVIDIA driver was updated but not reloaded: its library and kernel module differ",
    999: "the driver answered with an unknown error",
}

# nvmlValueType_t to the member of the union nvmlValue_t.
_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def reason_of(code: int) -> str:
    """Return a clause for an nvmlReturn_t code."""
    return UNSUPPORTED.get(code) or _REASONS.get(code) or f"NVML error {code}"


class Nvml:
    """The initialised library. ``api`` is the pynvml module, whose functions raise ``Error`` with a code."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.Error = api.NVMLError
        self.driver_version = self.maybe(api.nvmlSystemGetDriverVersion)
        cuda = self.maybe(api.nvmlSystemGetCudaDriverVersion)
        self.cuda_version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"

    @classmethod
    def open(cls) -> Nvml:
        """Load and initialise the library. Raises VendorError."""
        try:
            api = importlib.import_module("pynvml")
        except ImportError:
            raise VendorError("the Python module pynvml is missing on this node") from None
        try:
            api.nvmlInit()
        except api.NVMLError as error:
            raise VendorError(reason_of(error.value)) from None
        return cls(api)

    def maybe(self, function: Callable[..., T], *arguments: Any) -> Optional[T]:
        """Return the function's result, None when it fails."""
        try:
            return function(*arguments)
        except self.Error:
            return None

    def fields(self, handle: Any, fields: Sequence[Tuple[int, int]]) -> List[Tuple[int, Number]]:
        """Return nvmlReturn_t and number of each (field id, scope). Raises ``Error``."""
        return [
            (found.nvmlReturn, getattr(found.value, _MEMBERS[min(found.valueType, len(_MEMBERS) - 1)]))
            for found in self.api.nvmlDeviceGetFieldValues(handle, fields)
        ]

    def driver_before(self, *version: int) -> bool:
        """Return whether the driver is older than a version; an unknown version counts as new."""
        try:
            return tuple(int(part) for part in (self.driver_version or "").split(".")) < version
        except ValueError:
            return False
