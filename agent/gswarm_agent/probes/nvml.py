"""The NVIDIA driver's management library (NVML), opened, and what its answers mean."""

from __future__ import annotations

import ctypes
import importlib
import struct
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, TypeVar

T = TypeVar("T")

SUCCESS = 0
NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
_TIMEOUT = 10
_NOT_FOUND = 6
ALL_LINKS = 0xFFFFFFFF

UNSUPPORTED = {
    2: "this GPU or driver doesn't take the question",
    3: "not supported by this GPU",
    4: "not permitted to this user",
    13: "the driver is too old: it lacks the function",
    25: "the driver is too old: it lacks this version of the function",
    26: "the driver no longer answers it",
}
"""nvmlReturn_t codes that will stay: no use in asking again every tick."""

_SENTENCES = {
    1: "NVML isn't initialised",
    6: "not found",
    9: "the NVIDIA driver isn't loaded on this node",
    10: "the driver timed out",
    11: "the kernel found an interrupt problem with the GPU",
    12: "there is no NVIDIA driver on this node: libnvidia-ml.so.1 was not found",
    14: "the GPU's infoROM is corrupted",
    15: "the GPU has fallen off the bus",
    16: "the GPU needs a reset",
    17: "the driver failed in the operating system",
    18: "the NVIDIA driver was updated but not reloaded: its library and kernel module differ",
    19: "the GPU is in use",
    20: "the driver ran out of memory",
    27: "the GPU isn't ready",
    28: "the GPU is gone",
    999: "the driver answered with an unknown error",
}

HANGS = "the driver is slow or hangs"
"""Why there is no answer to a call that hasn't come back in time."""

UNSIGNED_INT = 1
"""nvmlValueType_t of a value of 32 bits."""

Field = Tuple[int, int]
"""A field id and its scope."""


class NvmlError(Exception):
    """NVML can't be used at all; the message says why, in one sentence."""


def reason_of(code: int) -> str:
    """One clause for an nvmlReturn_t code."""
    return UNSUPPORTED.get(code) or _SENTENCES.get(code) or f"NVML error {code}"


class FieldAnswer(NamedTuple):
    """The driver's answer to one field: its nvmlReturn_t, the nvmlValueType_t and the number."""

    code: int
    kind: int
    number: float


class FieldQuery:
    """A prepared nvmlDeviceGetFieldValues call, which answers many fields at once.

    pynvml's own takes five times as long: it makes the structures anew and each access to them is checked.
    """

    # nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value (a union).
    _LAYOUT = struct.Struct("=IIqqIIQ")

    def __init__(self, fields: Sequence[Field]) -> None:
        self._count = len(fields)
        self._buffer = ctypes.create_string_buffer(self._LAYOUT.size * len(fields))
        for i, (field, scope) in enumerate(fields):
            self._LAYOUT.pack_into(self._buffer, i * self._LAYOUT.size, field, scope, 0, 0, 0, 0, 0)

    def ask(self, function: Callable[..., int], handle: Any) -> Tuple[int, List[FieldAnswer]]:
        """The call's nvmlReturn_t and the answers in the order of the fields."""
        code = function(handle, self._count, self._buffer)
        return code, [
            FieldAnswer(verdict, kind, bits & 0xFFFFFFFF if kind == UNSIGNED_INT else _number(kind, bits))
            for _, _, _, _, kind, verdict, bits in self._LAYOUT.iter_unpack(self._buffer)
        ]


# nvmlValueType_t to the member of the union: double, (uint), ulong, ulonglong, slonglong, sint, ushort.
_MEMBERS = {0: "<d", 4: "<q", 5: "<i4x", 6: "<H6x"}


def _number(kind: int, bits: int) -> float:
    member = _MEMBERS.get(kind)
    return bits if member is None else struct.unpack(member, bits.to_bytes(8, "little"))[0]


class Nvml:
    """The initialised library. ``api`` is the pynvml module, whose functions raise ``Error`` with a code."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.Error = api.NVMLError
        library = ctypes.CDLL("libnvidia-ml.so.1")  # the one that pynvml has loaded
        self._get_fields: Optional[Callable[..., int]] = getattr(library, "nvmlDeviceGetFieldValues", None)
        self.driver_version = self.maybe(api.nvmlSystemGetDriverVersion)
        cuda = self.maybe(api.nvmlSystemGetCudaDriverVersion)
        self.cuda_version = None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}"

    @classmethod
    def open(cls) -> Nvml:
        """Load and initialise the library. Raises NvmlError."""
        try:
            api = importlib.import_module("pynvml")
        except ImportError:
            raise NvmlError("the Python module pynvml is missing on this node") from None
        try:
            api.nvmlInit()
        except api.NVMLError as error:
            raise NvmlError(reason_of(error.value)) from None
        return cls(api)

    def maybe(self, ask: Callable[..., T], *arguments: Any) -> Optional[T]:
        """What the function answers, None where it has no answer."""
        try:
            return ask(*arguments)
        except self.Error:
            return None

    def ask_fields(self, handle: Any, query: FieldQuery) -> Tuple[int, List[FieldAnswer]]:
        """The call's nvmlReturn_t and, where it is SUCCESS, the answers."""
        if self._get_fields is None:
            return FUNCTION_NOT_FOUND, []
        return query.ask(self._get_fields, handle)

    def count(self) -> int:
        """How many GPUs this process may see."""
        return self.maybe(self.api.nvmlDeviceGetCount) or 0

    def driver_before(self, *version: int) -> bool:
        """Whether the driver is older than a version; an unknown driver is taken to be new."""
        try:
            mine: Tuple[int, ...] = tuple(int(part) for part in (self.driver_version or "").split("."))
        except ValueError:
            return False
        return mine < version

    def is_timeout(self, error: Any) -> bool:
        """Whether waiting ended without an event."""
        return bool(error.value == _TIMEOUT)

    def is_empty(self, error: Any) -> bool:
        """Whether the answer is that there is nothing."""
        return bool(error.value == _NOT_FOUND)

    def close(self) -> None:
        """Let go of the library. No other thread may be inside it."""
        self.maybe(self.api.nvmlShutdown)


def handle_address(handle: Any) -> int:
    """What tells two device handles apart."""
    return ctypes.addressof(handle.contents)
