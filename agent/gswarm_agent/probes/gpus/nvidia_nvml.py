"""Bindings to the NVIDIA driver's management library (NVML), and the meaning of its return codes."""

from __future__ import annotations

import ctypes
import importlib
import struct
from dataclasses import dataclass

from gswarm_agent.probes.gpus.vendor import VendorError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, List, Optional, Sequence, Tuple, TypeAlias, TypeVar

    T = TypeVar("T")

SUCCESS = 0
NOT_SUPPORTED = 3
FUNCTION_NOT_FOUND = 13
GPU_IS_LOST = 15
NOT_FOUND = 6
_INSUFFICIENT_SIZE = 7
TIMEOUT = 10
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

Field: TypeAlias = "Tuple[int, int]"
"""A field id and its scope."""

Function: TypeAlias = "Callable[..., int]"
"""A function of the library itself; returns nvmlReturn_t."""

FieldAnswers: TypeAlias = "Tuple[int, Tuple[int, ...], Tuple[float, ...]]"
"""The call's nvmlReturn_t, then each field's nvmlReturn_t and number."""


def reason_of(code: int) -> str:
    """Return a clause for an nvmlReturn_t code."""
    return UNSUPPORTED.get(code) or _REASONS.get(code) or f"NVML error {code}"


@dataclass(frozen=True)
class Call:
    """A function of the library that fills a structure about a device, of at most 64 bytes.

    ``layout`` describes the numbers to read from the structure (see ``struct``, without alignment),
    ``constants`` are the arguments between the device and the structure, ``version`` is the first field of a
    versioned structure.
    """

    function: Function
    layout: str
    constants: Tuple[int, ...] = ()
    version: int = 0


class CallQuery:
    """Prepared calls for a device that write into one buffer.

    pynvml's wrappers take several times as long: they look up the function, create the structure again and
    check each access to it.
    """

    _ROOM = 64

    def __init__(self, calls: Sequence[Call]) -> None:
        self._memory = ctypes.create_string_buffer(self._ROOM * len(calls))
        self._prepared: List[Tuple[Function, Tuple[Any, ...]]] = []
        layout = "="
        for i, call in enumerate(calls):
            at = i * self._ROOM
            struct.pack_into("=I", self._memory, at, call.version)
            where = ctypes.c_void_p(ctypes.addressof(self._memory) + at)
            self._prepared.append((call.function, (*map(ctypes.c_uint, call.constants), where)))
            layout += f"{call.layout}{self._ROOM - struct.calcsize('=' + call.layout)}x"
        self._layout = struct.Struct(layout)

    def run(self, handle: Any) -> Tuple[List[int], Tuple[int, ...]]:
        """Return each call's nvmlReturn_t, up to GPU_IS_LOST, and all numbers, junk for failed calls."""
        codes = []
        for function, arguments in self._prepared:
            code = function(handle, *arguments)
            codes.append(code)
            if code == GPU_IS_LOST:
                break
        return codes, self._layout.unpack(self._memory)


class ListQuery:
    """A call that fills a list of structures, with a buffer that grows as needed.

    ``layout`` is a structure's (see ``struct``). ``call`` gets a pointer to the buffer's length (in
    structures) and the buffer; it returns nvmlReturn_t.
    """

    _MOST = 1 << 16

    def __init__(self, layout: str) -> None:
        self._layout = struct.Struct(layout)
        self._count = ctypes.c_uint()
        self._counted = ctypes.byref(self._count)
        self._make_room(32)

    def _make_room(self, room: int) -> None:
        self._room = room
        self._memory = ctypes.create_string_buffer(room * self._layout.size)
        self._listed = memoryview(self._memory)

    def run(self, call: Callable[[Any, Any], int]) -> Tuple[int, List[Tuple[int, ...]]]:
        """Return the call's nvmlReturn_t and, on SUCCESS, the list."""
        self._count.value = self._room
        code = call(self._counted, self._memory)
        count = self._count.value
        if code == _INSUFFICIENT_SIZE and self._room < count <= self._MOST:
            self._make_room(2 * count)  # more may start before the next call
            return self.run(call)
        if code != SUCCESS or count == 0:
            return code, []
        size = min(self._room, count) * self._layout.size
        return code, list(self._layout.iter_unpack(self._listed[:size]))


# nvmlValueType_t to the member of the union: double, uint, (ulong, ulonglong), slonglong, sint, ushort.
_MEMBERS = {0: "d", 1: "I4x", 4: "q", 5: "i4x", 6: "H6x"}


class FieldQuery:
    """A prepared nvmlDeviceGetFieldValues call, which reads many fields at once."""

    # nvmlFieldValue_t: fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value (a union).
    _LAYOUT = struct.Struct("=IIqqIIQ")
    _ANSWER = "24xII"

    def __init__(self, fields: Sequence[Field]) -> None:
        self._count = len(fields)
        self._buffer = ctypes.create_string_buffer(self._LAYOUT.size * len(fields))
        self._expect((2,) * len(fields))
        for i, (field, scope) in enumerate(fields):
            self._LAYOUT.pack_into(self._buffer, i * self._LAYOUT.size, field, scope, 0, 0, 0, 0, 0)

    def run(self, function: Function, handle: Any) -> FieldAnswers:
        """Return the field values, which are junk unless the call's nvmlReturn_t is SUCCESS."""
        code = function(handle, self._count, self._buffer)
        answers = self._answers.unpack(self._buffer)
        if answers[::3] != self._kinds:
            self._expect(answers[::3])
            answers = self._answers.unpack(self._buffer)
        return code, answers[1::3], answers[2::3]

    def _expect(self, kinds: Tuple[int, ...]) -> None:
        """Prepare for fields of these types, which hardly ever change."""
        self._kinds = kinds
        layout = "".join([self._ANSWER + _MEMBERS.get(kind, "Q") for kind in kinds])
        self._answers = struct.Struct("=" + layout)


class Nvml:
    """The initialised library. ``api`` is the pynvml module, whose functions raise ``Error`` with a code."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.Error = api.NVMLError
        self._library = ctypes.CDLL("libnvidia-ml.so.1")  # the one that pynvml has loaded
        self.get_fields = self.function("nvmlDeviceGetFieldValues")
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

    def function(self, name: str) -> Function:
        """Return a function of the library; if it is missing, one that returns FUNCTION_NOT_FOUND."""
        return getattr(self._library, name, _not_found)

    def has(self, name: str) -> bool:
        """Return whether the library has a function."""
        return hasattr(self._library, name)

    def count(self) -> int:
        """Return the number of GPUs that this process can see."""
        return self.maybe(self.api.nvmlDeviceGetCount) or 0

    def driver_before(self, *version: int) -> bool:
        """Return whether the driver is older than a version; an unknown version counts as new."""
        try:
            own: Tuple[int, ...] = tuple(int(part) for part in (self.driver_version or "").split("."))
        except ValueError:
            return False
        return own < version


def _not_found(*_arguments: Any) -> int:
    return FUNCTION_NOT_FOUND


def handle_address(handle: Any) -> int:
    """Return the address that identifies a device handle."""
    return ctypes.addressof(handle.contents)
