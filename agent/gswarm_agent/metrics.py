"""The catalogue of metrics: each metric's name, unit, kind, source and meaning, defined once.

Wire columns, the database schema, heatmap choices, the filter language and the docs' tables come from here
and only from here. The order of a tuple is the order of its columns on the wire and in the database.

Kinds: a *gauge* is a value at one moment; a *counter* only grows and is stored raw; a *rate* is the growth
of a counter divided by the time between two ticks, so the first sample after a start has none.
Rates in MB/s count 10**6 bytes; memory in MiB counts 2**20.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, FrozenSet, Iterable, Optional, Tuple


GAUGE = "gauge"
COUNTER = "counter"
RATE = "rate"

MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 60_000
"""Bounds of the time between samples, for the command line, the screen and the agent alike."""

CORE, NVLINK, PCIE, HOST, PROCESSES, COUNTERS = "core", "nvlink", "pcie", "host", "processes", "counters"
ACTIVITY, HEALTH = "activity", "health"
METRIC_GROUPS: Dict[str, str] = {
    CORE: "load, memory, power, clocks, temperatures, errors of GPUs; always on",
    NVLINK: "bytes over NVLink",
    PCIE: "bytes over PCIe",
    ACTIVITY: "what the chip really does: SMs, tensor cores, memory bandwidth; Hopper and later",
    HEALTH: "links, remapped memory, recovery and limits of GPUs",
    HOST: "CPU, memory, disks and network of nodes",
    PROCESSES: "processes on GPUs",
    COUNTERS: "hardware counters of CPUs, in node-exclusive jobs; off by default",
}
"""The groups of metrics that can be switched off, and what each measures."""
ALL_GROUPS: Tuple[str, ...] = tuple(METRIC_GROUPS)
DEFAULT_GROUPS: Tuple[str, ...] = tuple(name for name in METRIC_GROUPS if name != COUNTERS)
"""The groups that are measured unless others are requested."""
SWITCHED_OFF = "switched off"
"""The reason for a metric whose group is off."""
CPU_COUNTERS, GPU_COUNTERS = "cpu_counters", "gpu_counters"
COUNTER_RIGHTS: Dict[str, str] = {CPU_COUNTERS: "CPU counters", GPU_COUNTERS: "GPU counters"}
"""Names of the entries in a node's capabilities that say who may use its hardware counters."""
OWN_PROCESSES = 2
"""The highest ``perf_event_paranoid`` with which users may count events of their own processes."""


@dataclass(frozen=True)
class Metric:
    """One metric: its column name (unit included), its meaning and its source.

    ``short`` is its name in the filter language and in narrow columns; ``top`` is the fixed upper end of its
    scale on screen, None where it depends on the device (then ``top_fact`` names the GPU fact with it).
    ``group`` is one of ``METRIC_GROUPS``; those of hosts are in HOST or COUNTERS. ``period_s`` is the
    shortest time between two readings, 0 where each sample reads it; samples between repeat the last value.
    ``words`` are the names of its values 0, 1, 2 …
    """

    name: str
    label: str
    short: str
    unit: str
    kind: str
    sql: str
    source: str
    meaning: str
    top: Optional[float] = None
    top_fact: Optional[str] = None
    group: str = CORE
    period_s: float = 0
    words: Tuple[str, ...] = ()

    def word(self, value: float) -> str:
        """Return the name of a value, or the number of one without a name."""
        known = dict(enumerate(self.words))
        return known.get(round(value)) or f"{value:.0f}"


# fmt: off
GPU_METRICS: Tuple[Metric, ...] = (
    Metric("util_pct", "GPU util", "util", "%", GAUGE, "SMALLINT", "nvmlDeviceGetUtilizationRates.gpu",
           "Share of time in which any kernel ran; copies may count, too", top=100),
    Metric("mem_util_pct", "memory util", "memutil", "%", GAUGE, "SMALLINT",
           "nvmlDeviceGetUtilizationRates.memory",
           "Share of time in which device memory was read or written", top=100),
    Metric("mem_used_mib", "memory used", "mem", "MiB", GAUGE, "INTEGER",
           "nvmlDeviceGetMemoryInfo_v2.used; /proc/meminfo on a GPU that shares the host's memory, as GB10",
           "Device memory in use", top_fact="memory_total_mib", period_s=1),
    Metric("power_w", "power", "power", "W", GAUGE, "FLOAT", "nvmlDeviceGetPowerUsage / 1000",
           "Power drawn by the board", top_fact="power_limit_w"),
    Metric("temp_c", "temperature", "temp", "°C", GAUGE, "SMALLINT",
           "nvmlDeviceGetTemperatureV(NVML_TEMPERATURE_GPU)", "Temperature of the GPU", top=100, period_s=1),
    Metric("mem_temp_c", "memory temp", "memtemp", "°C", GAUGE, "SMALLINT",
           "field 82 NVML_FI_DEV_MEMORY_TEMP", "Temperature of the device memory", top=110, period_s=1),
    Metric("sm_clock_mhz", "SM clock", "clock", "MHz", GAUGE, "INTEGER",
           "nvmlDeviceGetClockInfo(NVML_CLOCK_SM)",
           "Clock of the streaming multiprocessors", top_fact="sm_clock_max_mhz", period_s=1),
    Metric("mem_clock_mhz", "memory clock", "memclock", "MHz", GAUGE, "INTEGER",
           "nvmlDeviceGetClockInfo(NVML_CLOCK_MEM)",
           "Clock of the device memory", top_fact="mem_clock_max_mhz", period_s=10),
    Metric("pcie_tx_mb_s", "PCIe tx", "pcietx", "MB/s", RATE, "FLOAT",
           "NVML_GPM_METRIC_PCIE_TX_PER_SEC; without GPM nvmlDeviceGetPcieThroughput, every 4 s",
           "Bytes that the GPU sent over PCIe", group=PCIE, period_s=0.2),
    Metric("pcie_rx_mb_s", "PCIe rx", "pcierx", "MB/s", RATE, "FLOAT",
           "NVML_GPM_METRIC_PCIE_RX_PER_SEC; without GPM nvmlDeviceGetPcieThroughput, every 4 s",
           "Bytes that the GPU received over PCIe", group=PCIE, period_s=0.2),
    Metric("nvlink_tx_mb_s", "NVLink tx", "nvtx", "MB/s", RATE, "FLOAT",
           "field 138 NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX (KiB); 202 (bytes) from Blackwell on",
           "Bytes sent over all NVLinks of the GPU", top=450_000, group=NVLINK, period_s=1),
    Metric("nvlink_rx_mb_s", "NVLink rx", "nvrx", "MB/s", RATE, "FLOAT",
           "field 139 NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX (KiB); 204 (bytes) from Blackwell on",
           "Bytes received over all NVLinks of the GPU", top=450_000, group=NVLINK, period_s=1),
    Metric("energy_mj", "energy", "energy", "mJ", COUNTER, "BIGINT", "nvmlDeviceGetTotalEnergyConsumption",
           "Energy used since the driver was loaded", period_s=10),
    Metric("clock_reasons", "clock reasons", "reasons", "bits", GAUGE, "BIGINT",
           "nvmlDeviceGetCurrentClocksEventReasons",
           "Reasons for current clocks: 0x4 power, 0x8 slowdown, 0x60 thermal, 0x80 brake", period_s=1),
    Metric("throttle_power_pct", "power throttle", "thrpower", "%", RATE, "FLOAT",
           "field 74 NVML_FI_DEV_PERF_POLICY_POWER (ns)",
           "Share of time in which the power limit held clocks down", top=100, period_s=1),
    Metric("throttle_thermal_pct", "thermal throttle", "thrtherm", "%", RATE, "FLOAT",
           "fields 269 + 270 NVML_FI_DEV_CLOCKS_EVENT_REASON_SW/HW_THERM_SLOWDOWN, in ns "
           "(251 + 252 from driver 575, 75 NVML_FI_DEV_PERF_POLICY_THERMAL before); the longer one counts",
           "Share of time in which temperature held clocks down", top=100, period_s=1),
    Metric("throttle_brake_pct", "power brake", "thrbrake", "%", RATE, "FLOAT",
           "field 271 NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE, in ns (253 from 575 to 580.65)",
           "Share of time in which an external power brake held clocks down", top=100, period_s=1),
    Metric("sm_active_pct", "SM active", "sm", "%", RATE, "FLOAT", "NVML_GPM_METRIC_SM_UTIL",
           "Share of the SMs that were busy, mean; Hopper and later", top=100, group=ACTIVITY, period_s=0.2),
    Metric("tensor_active_pct", "tensor active", "tensor", "%", RATE, "FLOAT",
           "NVML_GPM_METRIC_ANY_TENSOR_UTIL",
           "Share of time with work on tensor cores, mean of all SMs", top=100, group=ACTIVITY, period_s=0.2),
    Metric("dram_active_pct", "DRAM active", "dram", "%", RATE, "FLOAT", "NVML_GPM_METRIC_DRAM_BW_UTIL",
           "Used share of the device memory's bandwidth", top=100, group=ACTIVITY, period_s=0.2),
    Metric("ecc_corrected", "ECC corrected", "ecc", "errors", COUNTER, "BIGINT",
           "nvmlDeviceGetTotalEccErrors(CORRECTED, VOLATILE)",
           "Corrected memory errors since the driver was loaded", period_s=10),
    Metric("ecc_uncorrected", "ECC uncorrected", "eccbad", "errors", COUNTER, "BIGINT",
           "nvmlDeviceGetTotalEccErrors(UNCORRECTED, VOLATILE)",
           "Uncorrected memory errors since the driver was loaded", period_s=10),
    Metric("pstate", "performance state", "pstate", "P", GAUGE, "SMALLINT", "nvmlDeviceGetPerformanceState",
           "Performance state, from 0 (fastest) to 15 (slowest)", top=15, period_s=10),
    Metric("sm_occupancy_pct", "SM occupancy", "occ", "%", RATE, "FLOAT", "NVML_GPM_METRIC_SM_OCCUPANCY",
           "Share of the possible warps that were active, mean", top=100, group=ACTIVITY, period_s=0.2),
    *(Metric(f"fp{bits}_active_pct", f"FP{bits} active", f"fp{bits}", "%", RATE, "FLOAT",
             f"NVML_GPM_METRIC_FP{bits}_UTIL",
             f"Share of time with FP{bits} work outside tensor cores", top=100, group=ACTIVITY, period_s=0.2)
      for bits in (64, 32, 16)),
    Metric("c2c_tx_mb_s", "C2C tx", "c2ctx", "MB/s", RATE, "FLOAT", "NVML_GPM_METRIC_C2C_TOTAL_TX_PER_SEC",
           "Bytes that the GPU sent to its module's CPU over NVLink-C2C", group=ACTIVITY, period_s=0.2),
    Metric("c2c_rx_mb_s", "C2C rx", "c2crx", "MB/s", RATE, "FLOAT", "NVML_GPM_METRIC_C2C_TOTAL_RX_PER_SEC",
           "Bytes that the GPU received from its module's CPU over NVLink-C2C", group=ACTIVITY, period_s=0.2),
    Metric("power_instant_w", "instant power", "powernow", "W", GAUGE, "FLOAT",
           "field 186 NVML_FI_DEV_POWER_INSTANT / 1000",
           "Power at one moment; power_w is a mean of 1 s on most GPUs",
           top_fact="power_limit_w", period_s=1),
    Metric("module_power_w", "module power", "modpower", "W", GAUGE, "FLOAT",
           "field 186 NVML_FI_DEV_POWER_INSTANT / 1000, scope 1",
           "Power of the module, with CPU and memory, at one moment", group=HEALTH, period_s=1),
    Metric("power_limit_now_w", "power limit now", "limit", "W", GAUGE, "FLOAT",
           "nvmlDeviceGetEnforcedPowerLimit / 1000",
           "Power limit in force, the lowest of all limits",
           top_fact="power_limit_w", group=HEALTH, period_s=10),
    Metric("temp_margin_c", "temp margin", "margin", "°C", GAUGE, "SMALLINT",
           "nvmlDeviceGetMarginTemperature; else the slowdown threshold - temp_c",
           "Degrees until the GPU slows down", group=HEALTH, period_s=10),
    Metric("app_sm_clock_mhz", "app SM clock", "appclock", "MHz", GAUGE, "INTEGER",
           "nvmlDeviceGetApplicationsClock(NVML_CLOCK_SM)",
           "Clock that applications may use at most", top_fact="sm_clock_max_mhz", group=HEALTH, period_s=60),
    Metric("app_mem_clock_mhz", "app memory clock", "appmem", "MHz", GAUGE, "INTEGER",
           "nvmlDeviceGetApplicationsClock(NVML_CLOCK_MEM)",
           "Memory clock that applications may use at most",
           top_fact="mem_clock_max_mhz", group=HEALTH, period_s=60),
    Metric("pcie_gen", "PCIe generation", "pciegen", "", GAUGE, "SMALLINT",
           "nvmlDeviceGetCurrPcieLinkGeneration",
           "PCIe generation now; below the maximum only under load, since idle links sleep",
           group=HEALTH, period_s=10),
    Metric("pcie_width", "PCIe lanes", "lanes", "lanes", GAUGE, "SMALLINT", "nvmlDeviceGetCurrPcieLinkWidth",
           "PCIe lanes now; below the maximum only under load", group=HEALTH, period_s=10),
    Metric("pcie_replays", "PCIe replays", "replays", "", COUNTER, "BIGINT",
           "field 94 NVML_FI_DEV_PCIE_REPLAY_COUNTER",
           "PCIe packets that were sent again since the driver was loaded", group=HEALTH, period_s=10),
    Metric("remapped_correctable", "remaps, corrected", "remapcorr", "rows", COUNTER, "INTEGER",
           "nvmlDeviceGetRemappedRows.corrRows",
           "Memory rows replaced after corrected errors", group=HEALTH, period_s=60),
    Metric("remapped_uncorrectable", "remaps, uncorr.", "remapbad", "rows", COUNTER, "INTEGER",
           "nvmlDeviceGetRemappedRows.uncRows",
           "Memory rows replaced after uncorrected errors", group=HEALTH, period_s=60),
    Metric("remap_pending", "remap pending", "remapwait", "", GAUGE, "SMALLINT",
           "nvmlDeviceGetRemappedRows.isPending",
           "1 if a memory row will be replaced at the next reset of the GPU", group=HEALTH, period_s=60),
    Metric("remap_failed", "remap failed", "remapfail", "", GAUGE, "SMALLINT",
           "nvmlDeviceGetRemappedRows.failureOccurred",
           "1 if a memory row could not be replaced", group=HEALTH, period_s=60),
    Metric("recovery_action", "recovery action", "recovery", "", GAUGE, "SMALLINT",
           "field 230 NVML_FI_DEV_GET_GPU_RECOVERY_ACTION",
           "0 none, 1 reset GPU, 2 reboot node, 3 drain P2P, 4 drain and reset, 5 recover IMEX domain, "
           "6 reset bus, 7 reboot system", group=HEALTH, period_s=10),
    Metric("nvlink_errors", "NVLink errors", "nverrors", "", COUNTER, "BIGINT",
           "NVLink 5: fields 206 to 212; else 161 + 163 of each link, else 38 + 45 + 52",
           "Errors of all NVLinks: CRC errors and replays; NVLink 5: bad and lost packets",
           group=HEALTH, period_s=60),
    Metric("nvlink_recoveries", "NVLink recovered", "nvrecover", "", COUNTER, "BIGINT",
           "NVLink 5: field 215; else 162 of each link, else 59",
           "Recoveries of NVLinks", group=HEALTH, period_s=60),
    Metric("fabric_state", "fabric state", "fabric", "", GAUGE, "SMALLINT",
           "nvmlDeviceGetGpuFabricInfoV.state",
           "Registration with the NVLink fabric: 1 not started, 2 in progress, 3 completed",
           group=HEALTH, period_s=60),
)

HOST_METRICS: Tuple[Metric, ...] = (
    Metric("cpu_pct", "CPU", "cpu", "%", RATE, "FLOAT", "/proc/stat cpu",
           "Share of all cores' time that was neither idle nor iowait", top=100, group=HOST),
    Metric("cpu_user_pct", "CPU user", "cpuuser", "%", RATE, "FLOAT", "/proc/stat cpu: user + nice",
           "Share of CPU time in user code", top=100, group=HOST),
    Metric("cpu_system_pct", "CPU system", "cpusys", "%", RATE, "FLOAT",
           "/proc/stat cpu: system + irq + softirq", "Share of CPU time in the kernel", top=100, group=HOST),
    Metric("cpu_iowait_pct", "iowait", "iowait", "%", RATE, "FLOAT", "/proc/stat cpu: iowait",
           "Share of CPU time spent idle, waiting for disks", top=100, group=HOST),
    Metric("cpu_busiest_pct", "busiest core", "core", "%", RATE, "FLOAT", "/proc/stat cpuN",
           "Share of the busiest core's time that was neither idle nor iowait", top=100, group=HOST),
    Metric("load_1m", "load", "load", "tasks", GAUGE, "FLOAT", "/proc/loadavg",
           "Runnable and uninterruptible tasks, averaged over one minute", group=HOST),
    Metric("memory_used_mib", "memory", "hostmem", "MiB", GAUGE, "INTEGER",
           "/proc/meminfo MemTotal - MemAvailable",
           "Host memory in use", top_fact="memory_total_mib", group=HOST),
    Metric("swap_used_mib", "swap", "swap", "MiB", GAUGE, "INTEGER", "/proc/meminfo SwapTotal - SwapFree",
           "Swap space in use", group=HOST),
    Metric("disk_read_mb_s", "disk read", "diskr", "MB/s", RATE, "FLOAT", "/proc/diskstats",
           "Bytes read from local disks", group=HOST),
    Metric("disk_write_mb_s", "disk write", "diskw", "MB/s", RATE, "FLOAT", "/proc/diskstats",
           "Bytes written to local disks", group=HOST),
    Metric("net_rx_mb_s", "net in", "netin", "MB/s", RATE, "FLOAT", "/proc/net/dev without lo",
           "Bytes received on network interfaces", group=HOST),
    Metric("net_tx_mb_s", "net out", "netout", "MB/s", RATE, "FLOAT", "/proc/net/dev without lo",
           "Bytes sent on network interfaces", group=HOST),
    Metric("ib_rx_mb_s", "IB in", "ibin", "MB/s", RATE, "FLOAT",
           "/sys/class/infiniband/*/ports/*/counters/port_rcv_data x 4",
           "Bytes received on InfiniBand and RoCE ports", group=HOST),
    Metric("ib_tx_mb_s", "IB out", "ibout", "MB/s", RATE, "FLOAT",
           "/sys/class/infiniband/*/ports/*/counters/port_xmit_data x 4",
           "Bytes sent on InfiniBand and RoCE ports", group=HOST),
    Metric("psi_cpu_pct", "CPU pressure", "psicpu", "%", RATE, "FLOAT", "/proc/pressure/cpu some total",
           "Share of time in which some task waited for a CPU", top=100, group=HOST),
    Metric("psi_memory_pct", "memory pressure", "psimem", "%", RATE, "FLOAT",
           "/proc/pressure/memory some total",
           "Share of time in which some task waited for memory", top=100, group=HOST),
    Metric("psi_io_pct", "I/O pressure", "psiio", "%", RATE, "FLOAT", "/proc/pressure/io some total",
           "Share of time in which some task waited for I/O", top=100, group=HOST),
    Metric("job_memory_mib", "job memory", "jobmem", "MiB", GAUGE, "INTEGER",
           "memory.current of the Slurm job's cgroup (v1: memory.usage_in_bytes)",
           "Host memory of the job, page cache included", top_fact="memory_total_mib", group=HOST),
    Metric("job_memory_limit_mib", "job limit", "joblimit", "MiB", GAUGE, "INTEGER",
           "memory.max of the Slurm job's cgroup (v1: memory.limit_in_bytes)",
           "Host memory that the job may use", top_fact="memory_total_mib", group=HOST),
    Metric("job_oom_kills", "job OOM kills", "oom", "", COUNTER, "BIGINT",
           "memory.events oom_kill of the Slurm job's cgroup (v1: memory.oom_control of its steps)",
           "Processes of the job that the kernel killed for lack of memory", group=HOST),
    Metric("job_psi_cpu_pct", "job CPU PSI", "jobpsicpu", "%", RATE, "FLOAT",
           "cpu.pressure some total of the Slurm job's cgroup (v2)",
           "Share of time in which some task of the job waited for a CPU", top=100, group=HOST),
    Metric("job_psi_memory_pct", "job memory PSI", "jobpsimem", "%", RATE, "FLOAT",
           "memory.pressure some total of the Slurm job's cgroup (v2)",
           "Share of time in which some task of the job waited for memory", top=100, group=HOST),
    Metric("job_psi_io_pct", "job I/O PSI", "jobpsiio", "%", RATE, "FLOAT",
           "io.pressure some total of the Slurm job's cgroup (v2)",
           "Share of time in which some task of the job waited for I/O", top=100, group=HOST),
    Metric("instructions_g_s", "instructions", "instr", "G/s", RATE, "FLOAT", "perf instructions",
           "Instructions that all CPUs retired", group=COUNTERS),
    Metric("cycles_g_s", "cycles", "cycles", "G/s", RATE, "FLOAT", "perf cycles",
           "Cycles in which CPUs were not halted", group=COUNTERS),
    Metric("ipc", "IPC", "ipc", "", RATE, "FLOAT", "perf instructions / cycles",
           "Instructions per cycle of all CPUs", top=6, group=COUNTERS),
    Metric("flops_g_s", "CPU FLOP rate", "flops", "GFLOP/s", RATE, "FLOAT",
           "perf fp_arith_inst_retired.* or fp_ret_sse_avx_ops.all",
           "Floating-point operations of all CPUs", group=COUNTERS),
    Metric("memory_bandwidth_mb_s", "memory traffic", "membw", "MB/s", RATE, "FLOAT",
           "perf uncore_imc, umc_cas_cmd.all or dram_channel_data_controller_*",
           "Bytes read from and written to host memory", group=COUNTERS),
    Metric("llc_misses_m_s", "cache misses", "llcmiss", "M/s", RATE, "FLOAT", "perf cache-misses",
           "Last-level cache misses", group=COUNTERS),
    Metric("page_faults_s", "page faults", "faults", "1/s", RATE, "FLOAT", "perf page-faults",
           "Page faults of all processes", group=COUNTERS),
    Metric("context_switches_s", "ctx switches", "switches", "1/s", RATE, "FLOAT", "perf context-switches",
           "Context switches on all CPUs", group=COUNTERS),
    Metric("cpu_migrations_s", "CPU migrations", "migrate", "1/s", RATE, "FLOAT", "perf cpu-migrations",
           "Moves of tasks from one CPU to another", group=COUNTERS),
)

PROCESS_METRICS: Tuple[Metric, ...] = (
    Metric("gpu_memory_mib", "GPU memory", "gmem", "MiB", GAUGE, "INTEGER",
           "nvmlDeviceGetComputeRunningProcesses.usedGpuMemory",
           "Device memory that the process holds", group=PROCESSES, period_s=5),
    Metric("sm_pct", "SM", "sm", "%", GAUGE, "SMALLINT", "nvmlDeviceGetProcessUtilization.smUtil",
           "Share of time in which a kernel of the process ran, mean of 5 s",
           top=100, group=PROCESSES, period_s=5),
    Metric("cpu_pct", "CPU", "cpu", "%", RATE, "FLOAT", "/proc/PID/stat utime + stime",
           "CPU time of the process; 100 is one core", group=PROCESSES, period_s=5),
    Metric("memory_mib", "memory", "rss", "MiB", GAUGE, "INTEGER", "/proc/PID/stat rss",
           "Resident host memory of the process", group=PROCESSES, period_s=5),
    Metric("read_mb_s", "read", "read", "MB/s", RATE, "FLOAT", "/proc/PID/io read_bytes",
           "Bytes that the process read from disks", group=PROCESSES, period_s=5),
    Metric("write_mb_s", "write", "write", "MB/s", RATE, "FLOAT", "/proc/PID/io write_bytes",
           "Bytes that the process wrote to disks", group=PROCESSES, period_s=5),
    Metric("read_calls_mb_s", "read calls", "rchar", "MB/s", RATE, "FLOAT", "/proc/PID/io rchar",
           "Bytes of all calls that read, also from network file systems and pipes",
           group=PROCESSES, period_s=5),
    Metric("write_calls_mb_s", "write calls", "wchar", "MB/s", RATE, "FLOAT", "/proc/PID/io wchar",
           "Bytes of all calls that write, also to network file systems and pipes",
           group=PROCESSES, period_s=5),
    Metric("voluntary_switches_s", "waits", "volsw", "1/s", RATE, "FLOAT",
           "/proc/PID/status voluntary_ctxt_switches",
           "Context switches of the main thread because it waited", group=PROCESSES, period_s=5),
    Metric("involuntary_switches_s", "preemptions", "invsw", "1/s", RATE, "FLOAT",
           "/proc/PID/status nonvoluntary_ctxt_switches",
           "Context switches of the main thread because others needed its CPU", group=PROCESSES, period_s=5),
    Metric("world_size", "world size", "world", "", GAUGE, "INTEGER",
           "WORLD_SIZE, OMPI_COMM_WORLD_SIZE, MV2_COMM_WORLD_SIZE, PMI_SIZE or SLURM_STEP_NUM_TASKS",
           "Number of ranks, from the launcher's variables", group=PROCESSES, period_s=5),
    Metric("threads", "threads", "thr", "", GAUGE, "INTEGER", "/proc/PID/stat num_threads",
           "Threads of the process", group=PROCESSES, period_s=5),
    Metric("numa_node", "NUMA node", "numa", "", GAUGE, "SMALLINT",
           "/proc/PID/status Cpus_allowed_list, /sys/devices/system/node",
           "NUMA node of the CPUs that the main thread may use, if all are in one",
           group=PROCESSES, period_s=5),
    Metric("age_s", "age", "age", "s", GAUGE, "INTEGER", "/proc/PID/stat starttime",
           "Time since the process started", group=PROCESSES, period_s=5),
)
# fmt: on

LISTING_S = 10.0
"""Time between two listings of ports and mounts."""


def _of_host(name: str, unit: str, sql: str, *texts: str, words: Tuple[str, ...] = ()) -> Metric:
    """Return a metric of a port or mount; ``texts`` are source, meaning and, unless it is a gauge, kind."""
    source, meaning, kind = (*texts, GAUGE)[:3]
    label = name.replace("_", " ")
    meaning += f": {', '.join(f'{at} {word}' for at, word in enumerate(words) if word)}" if words else ""
    return Metric(name, label, label, unit, kind, sql, source, meaning, None, None, HOST, LISTING_S, words)


PORT_ERRORS = (
    *("symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors"),
    *("local_ack_timeout_err", "carrier_changes", "rx_errors", "tx_errors"),
)
"""Counters of a port that hardly grow while nothing is wrong."""
_NET, _PORT = "/sys/class/net/*", "/sys/class/infiniband/*/ports/*"
# fmt: off
PORT_METRICS: Tuple[Metric, ...] = (
    _of_host("state", "", "SMALLINT", f"{_PORT}/state; {_NET}/operstate", "State of the port",
             words=("", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER")),
    _of_host("phys_state", "", "SMALLINT", f"{_PORT}/phys_state", "Physical state of the port",
             words=("", "Sleep", "Polling", "Disabled", "Training", "LinkUp", "ErrorRecovery", "PhyTest")),
    _of_host("rate_gbit_s", "Gbit/s", "FLOAT", f"{_PORT}/rate; {_NET}/speed", "Rate of the link"),
    _of_host("numa_node", "", "SMALLINT", "device/numa_node", "NUMA node of the port's device"),
    _of_host("rx_mb_s", "MB/s", "FLOAT", "port_rcv_data x 4; rx_bytes", "Bytes received", RATE),
    _of_host("tx_mb_s", "MB/s", "FLOAT", "port_xmit_data x 4; tx_bytes", "Bytes sent", RATE),
    _of_host("new_errors", "events", "BIGINT", "the counters named",
             f"Growth of {', '.join(PORT_ERRORS)} since the agent started", COUNTER),
    *(
        _of_host(file.split("/")[-1], "events", "BIGINT", file, f"{meaning}, since boot or a reset", COUNTER)
        for file, meaning in {
            "counters/symbol_error": "Symbols received with errors",
            "counters/link_error_recovery": "Recoveries of the link",
            "counters/link_downed": "Failed recoveries after which the link went down",
            "counters/port_rcv_errors": "Packets received with errors",
            "counters/port_xmit_discards": "Packets that the port discarded, being down or congested",
            "counters/port_xmit_wait": "Ticks in which the port had data to send and no credits",
            "hw_counters/out_of_sequence": "Packets received out of sequence",
            "hw_counters/packet_seq_err": "Negative acknowledgements of a sequence error received",
            "hw_counters/local_ack_timeout_err": "Times that a sender's acknowledgement timer expired",
            "hw_counters/rnr_nak_retry_err": "Negative acknowledgements because the receiver was not ready",
            "hw_counters/roce_slow_restart": "Slow restarts of RoCE",
            "hw_counters/np_cnp_sent": "Congestion notifications that this port sent as a receiver",
            "hw_counters/rp_cnp_handled": "Congestion notifications upon which this port sent more slowly",
            "carrier_changes": "Times that the carrier came or went",
            "statistics/rx_errors": "Packets received with errors",
            "statistics/tx_errors": "Packets that could not be sent",
            "statistics/rx_dropped": "Packets received and dropped",
            "statistics/tx_dropped": "Packets dropped instead of sent",
        }.items()
    ),
)
"""Metrics of each port of InfiniBand and RoCE adapters and of each physical network interface."""

MOUNT_METRICS: Tuple[Metric, ...] = (
    _of_host("free_mib", "MiB", "BIGINT", "statvfs f_bavail", "Space that users can still fill"),
    _of_host("total_mib", "MiB", "BIGINT", "statvfs f_blocks", "Size of the file system"),
    _of_host("free_inodes", "files", "BIGINT", "statvfs f_favail",
             "Files that users can still create, where the file system limits them"),
    *(
        _of_host(f"{way}_ms", "ms", "FLOAT",
                 f"/proc/self/mountstats {way.upper()} of NFS; llite/*/stats {way} of Lustre",
                 f"Mean time of a {way} since the previous reading, of NFS and Lustre", RATE)
        for way in ("read", "write")
    ),
)
"""Metrics of each file system: of the job's working folder, /tmp and /dev/shm."""
# fmt: on
PORTS, MOUNTS = "ports", "mounts"
LISTINGS: Dict[str, Tuple[Metric, ...]] = {PORTS: PORT_METRICS, MOUNTS: MOUNT_METRICS}
"""Tables of a node whose rows have names, such as ``mlx5_0/1``, ``eth0`` or ``/tmp``."""
ROW_NAMES = {PORTS: "port", MOUNTS: "mount"}
"""The column with a row's name, which JSON and the recording have before the metrics."""
LISTING_COLUMNS = tuple((kind, tuple(m.name for m in metrics)) for kind, metrics in LISTINGS.items())
PORT_COLUMNS, MOUNT_COLUMNS = (columns for _, columns in LISTING_COLUMNS)
GPU_COLUMNS: Tuple[str, ...] = tuple(m.name for m in GPU_METRICS)
CURVE_METRICS: Tuple[Metric, ...] = tuple(m for m in GPU_METRICS if m.group != HEALTH)
"""The first of GPU_METRICS: those with a curve on screens, whose history is kept. Health comes after them."""
ACTIVITY_COLUMNS: Tuple[str, ...] = tuple(m.name for m in GPU_METRICS if m.group == ACTIVITY)
INSTANCE_COLUMNS: Tuple[str, ...] = ("mem_used_mib", *ACTIVITY_COLUMNS)
"""The metrics that MIG instances have, too."""
HOST_COLUMNS: Tuple[str, ...] = tuple(m.name for m in HOST_METRICS)
PROC_COLUMNS: Tuple[str, ...] = tuple(m.name for m in HOST_METRICS if m.group == HOST)
"""The first of HOST_COLUMNS: those that are read from /proc and /sys."""
COUNTER_COLUMNS: Tuple[str, ...] = tuple(m.name for m in HOST_METRICS if m.group == COUNTERS)
"""The others of HOST_COLUMNS."""
PROCESS_COLUMNS: Tuple[str, ...] = tuple(m.name for m in PROCESS_METRICS)
EXACT_COLUMNS: FrozenSet[str] = frozenset(
    m.name
    for metrics in (GPU_METRICS, HOST_METRICS, PROCESS_METRICS, *LISTINGS.values())
    for m in metrics
    if m.sql == "BIGINT"
)
"""Columns that need more than the 24 bits of single precision."""

GPU_BY_NAME: Dict[str, Metric] = {m.name: m for m in GPU_METRICS}
GPU_BY_SHORT: Dict[str, Metric] = {m.short: m for m in GPU_METRICS}
HOST_BY_NAME: Dict[str, Metric] = {m.name: m for m in HOST_METRICS}


def known_groups(names: Iterable[str]) -> Tuple[str, ...]:
    """Return the groups among these names, and CORE, in the catalogue's order."""
    wanted = {CORE, *names}
    return tuple(name for name in ALL_GROUPS if name in wanted)


def columns_off(groups: Iterable[str]) -> FrozenSet[str]:
    """Return the GPU columns that are not measured if only these groups are on."""
    on = frozenset(groups)
    return frozenset(m.name for m in GPU_METRICS if m.group not in on)


def reasons_off(groups: Iterable[str]) -> Dict[str, str]:
    """Return what is not measured if only these groups are on: GPU columns, and other groups by name."""
    on = frozenset(groups)
    names = [*sorted(columns_off(on)), *(name for name in (HOST, PROCESSES, COUNTERS) if name not in on)]
    return dict.fromkeys(names, SWITCHED_OFF)


# Bits of clock_reasons that mean throttling (nvml.h, nvmlClocksEventReason*).
REASON_POWER_CAP = 0x4
REASON_HW_SLOWDOWN = 0x8
REASON_SW_THERMAL = 0x20
REASON_HW_THERMAL = 0x40
REASON_POWER_BRAKE = 0x80
RECOVERY_ACTIONS: Dict[int, str] = {
    1: "reset the GPU",
    2: "reboot the node",
    3: "drain peer-to-peer traffic",
    4: "drain the GPU, then reset it",
    5: "recover the IMEX domain",
    6: "reset the GPU's bus",
    7: "reboot the whole system",
}
"""The recovery that the driver demands for a GPU, by the metric's value (nvmlDeviceGpuRecoveryAction_t)."""
REASON_NAMES: Dict[int, str] = {
    0x1: "idle",
    0x2: "applications clocks",
    REASON_POWER_CAP: "power cap",
    REASON_HW_SLOWDOWN: "hardware slowdown",
    0x10: "sync boost",
    REASON_SW_THERMAL: "thermal (software)",
    REASON_HW_THERMAL: "thermal (hardware)",
    REASON_POWER_BRAKE: "power brake",
    0x100: "display clocks",
}
