"""What the probes need of NVIDIA's management library (NVML); its numbers are named as in ``nvml.h``.

NVIDIA's own module, pynvml, has all of it, and takes a third of the way to the first frame to import.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Optional, Tuple

NVML_TEMPERATURE_GPU = 0
NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_PSTATE_UNKNOWN = 32
NVML_PCIE_UTIL_TX_BYTES = 0
NVML_PCIE_UTIL_RX_BYTES = 1

NVML_FI_DEV_PERF_POLICY_POWER = 74
NVML_FI_DEV_MEMORY_TEMP = 82
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
NVML_FI_DEV_PCIE_COUNT_TX_BYTES = 197
NVML_FI_DEV_PCIE_COUNT_RX_BYTES = 198
NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES = 202
NVML_FI_DEV_NVLINK_COUNT_RCV_BYTES = 204
NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN = 269
NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN = 270
NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN = 271

NVML_EVENT_TYPE_DOUBLE_BIT_ECC_ERROR = 2
NVML_EVENT_TYPE_XID_CRITICAL_ERROR = 8
NVML_MEMORY_V2 = 0x02000028

_FUNCTION_NOT_FOUND = 13
_LIBRARY_NOT_FOUND = 12
_INSUFFICIENT_SIZE = 7
_LONGEST_TEXT = 96
_MEMORY = struct.Struct("=QQQ")  # nvmlMemory_t: total, free, used
_PCI = struct.Struct("=16x5I32s")  # nvmlPciInfo_t: four numbers of the place, the subsystem's, busId
_EVENT = struct.Struct("=QQQII")  # nvmlEventData_t: device, eventType, eventData, instances


class CallError(Exception):
    """The library gave no answer; ``code`` is its nvmlReturn_t."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


class Library:
    """The library, loaded and initialised, which may take the driver seconds. All methods raise CallError."""

    def __init__(self) -> None:
        try:
            self.loaded = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise CallError(_LIBRARY_NOT_FOUND) from None
        self._call("nvmlInit_v2")

    def driver_version(self) -> str:
        """As in 580.82.07."""
        return self._text("nvmlSystemGetDriverVersion")

    def cuda_driver_version(self) -> int:
        """As in 13000 for 13.0."""
        return self._number("nvmlSystemGetCudaDriverVersion")

    def count(self) -> int:
        """How many GPUs this process may see."""
        return self._number("nvmlDeviceGetCount_v2")

    def handle(self, index: int) -> ctypes.c_void_p:
        """What names a GPU in all other calls."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        return handle

    def name(self, handle: Any) -> str:
        """The product's."""
        return self._text("nvmlDeviceGetName", handle)

    def uuid(self, handle: Any) -> str:
        """With GPU- before it."""
        return self._text("nvmlDeviceGetUUID", handle)

    def minor_number(self, handle: Any) -> int:
        """N of /dev/nvidiaN."""
        return self._number("nvmlDeviceGetMinorNumber", handle)

    def pci_bus_id(self, handle: Any) -> str:
        """As in 00000000:1B:00.0."""
        bus_id: bytes = self._structure("nvmlDeviceGetPciInfo_v3", _PCI, handle)[5]
        return bus_id.partition(b"\0")[0].decode("ascii", "replace")

    def memory_total(self, handle: Any) -> int:
        """In bytes."""
        return int(self._structure("nvmlDeviceGetMemoryInfo", _MEMORY, handle)[0])

    def enforced_power_limit(self, handle: Any) -> int:
        """In milliwatts."""
        return self._number("nvmlDeviceGetEnforcedPowerLimit", handle)

    def max_clock(self, handle: Any, clock: int) -> int:
        """In MHz."""
        return self._number("nvmlDeviceGetMaxClockInfo", handle, clock)

    def max_pcie_generation(self, handle: Any) -> int:
        """Of the GPU in this system."""
        return self._number("nvmlDeviceGetMaxPcieLinkGeneration", handle)

    def max_pcie_width(self, handle: Any) -> int:
        """In lanes."""
        return self._number("nvmlDeviceGetMaxPcieLinkWidth", handle)

    def mig_mode(self, handle: Any) -> int:
        """1 where the GPU is divided at present."""
        pending = ctypes.c_uint()
        return self._number("nvmlDeviceGetMigMode", handle, after=ctypes.byref(pending))

    def ask_for_processes(self, handle: Any) -> None:
        """Find out whether the processes on a GPU are told."""
        none = ctypes.c_uint(0)
        try:
            self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(none), None)
        except CallError as error:
            if error.code != _INSUFFICIENT_SIZE:
                raise

    def create_event_set(self) -> ctypes.c_void_p:
        """A set of events to wait for."""
        events = ctypes.c_void_p()
        self._call("nvmlEventSetCreate", ctypes.byref(events))
        return events

    def supported_event_types(self, handle: Any) -> int:
        """Their numbers, or-ed."""
        kinds = ctypes.c_ulonglong()
        self._call("nvmlDeviceGetSupportedEventTypes", handle, ctypes.byref(kinds))
        return kinds.value

    def register_events(self, handle: Any, kinds: int, events: Any) -> None:
        """Have events of these kinds of a GPU come to the set."""
        self._call("nvmlDeviceRegisterEvents", handle, ctypes.c_ulonglong(kinds), events)

    def wait_for_event(self, events: Any, timeout_ms: int) -> Tuple[int, int, int]:
        """The next event of a set: its GPU's handle, its type, and its data (an XID's number)."""
        device, kind, data, *_ = self._structure("nvmlEventSetWait_v2", _EVENT, events, after=timeout_ms)
        return device, kind, data

    def _call(self, name: str, *arguments: Any) -> None:
        function = getattr(self.loaded, name, None)
        code = _FUNCTION_NOT_FOUND if function is None else function(*arguments)
        if code:
            raise CallError(code)

    def _number(self, name: str, *arguments: Any, after: Optional[Any] = None) -> int:
        number = ctypes.c_uint()
        self._call(name, *arguments, ctypes.byref(number), *(() if after is None else (after,)))
        return number.value

    def _text(self, name: str, *arguments: Any) -> str:
        text = ctypes.create_string_buffer(_LONGEST_TEXT)
        self._call(name, *arguments, text, ctypes.c_uint(_LONGEST_TEXT))
        return text.value.decode("utf-8", "replace")

    def _structure(
        self, name: str, layout: struct.Struct, *arguments: Any, after: Optional[int] = None
    ) -> Tuple[Any, ...]:
        memory = ctypes.create_string_buffer(layout.size)
        self._call(name, *arguments, memory, *(() if after is None else (after,)))
        return layout.unpack(memory)
