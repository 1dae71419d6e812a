"""NVIDIA's catalogue of XIDs: mnemonics, and what NVIDIA advises. Imported when the first XID comes.

Source: https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html (Ampere and later, to XID 172).
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, Tuple, Union

# NVIDIA's immediate and investigatory action, then the XIDs that have them with their mnemonics. "~" stands
# for "ROBUST_CHANNEL_", "-" for no action. XIDs that current GPUs no longer use are left out.
_CATALOGUE = """
RESTART_APP CONTACT_SUPPORT: 8 ~FIFO_ERROR_IDLE_TIMEOUT 39 ~CE0_ERROR 40 ~CE1_ERROR 41 ~CE2_ERROR
  68 ~NVDEC0_ERROR 70 ~CE3_ERROR 71 ~CE4_ERROR 72 ~CE5_ERROR 75 ~CE6_ERROR 76 ~CE7_ERROR 77 ~CE8_ERROR
  82 ~NVJPG0_ERROR 83 ~NVDEC1_ERROR 84 ~NVDEC2_ERROR 85 ~CE9_ERROR 86 ~OFA0_ERROR 88 ~NVDEC3_ERROR
  89 ~NVDEC4_ERROR 96 ~NVDEC5_ERROR 97 ~NVDEC6_ERROR 98 ~NVDEC7_ERROR 99 ~NVJPG1_ERROR 100 ~NVJPG2_ERROR
  101 ~NVJPG3_ERROR 102 ~NVJPG4_ERROR 103 ~NVJPG5_ERROR 104 ~NVJPG6_ERROR 105 ~NVJPG7_ERROR 126 ~CE10_ERROR
  127 ~CE11_ERROR 128 ~CE12_ERROR 129 ~CE13_ERROR 130 ~CE14_ERROR 131 ~CE15_ERROR 132 ~CE16_ERROR
  133 ~CE17_ERROR 134 ~CE18_ERROR 135 ~CE19_ERROR 139 ~OFA1_ERROR
RESTART_APP CHECK_APP/CUDA: 11 ~GR_ERROR_MISSING_HW 25 ~GR_ILLEGAL_NOTIFY 32 ~PBDMA_ERROR 69 ~GR_CLASS_ERROR
  80 PBDMA_PUSHBUFFER_CRC_MISMATCH
RESTART_APP WORKFLOW_XID_13: 13 ~GR_EXCEPTION
RESTART_APP WORKFLOW_XID_31: 31 ~FIFO_ERROR_MMU_ERR_FLT
RESTART_APP INVESTIGATE_SW: 60 ~SEC2_ERROR
RESTART_APP IGNORE: 94 ~CONTAINED_ERROR
RESTART_VM CONTACT_SUPPORT: 151 ~KEY_ROTATION_ERROR
RESTART_BM CONTACT_SUPPORT: 79 ~GPU_HAS_FALLEN_OFF_THE_BUS
RESET_GPU CONTACT_SUPPORT: 46 ~GPU_TIMEOUT_ERROR 62 PMU_HALT_ERROR 64 INFOROM_DRAM_RETIREMENT_FAILURE
  109 ~CTXSW_TIMEOUT_ERROR 140 UNRECOVERABLE_ECC_ERROR_ESCAPE 143 GPU_INIT_ERROR 158 GPU_FATAL_TIMEOUT
RESET_GPU INVESTIGATE_SW: 110 SEC_FAULT_ERROR 119 GSP_RPC_TIMEOUT 120 GSP_ERROR
RESET_GPU INVESTIGATE_SW_USER: 155 NVLINK_SW_DEFINED_ERROR
RESET_GPU INVESTIGATE_LINK_SI: 136 ALI_TRAINING_FAIL
RESET_GPU IGNORE: 95 ~UNCONTAINED_ERROR 156 RESOURCE_RETIREMENT_EVENT
WORKFLOW_XID_45 WORKFLOW_XID_45: 45 ~PREEMPTIVE_REMOVAL
WORKFLOW_XID_48 WORKFLOW_XID_48: 48 ~GPU_ECC_DBE
WORKFLOW_NVLINK_ERR CONTACT_SUPPORT: 74 NVLINK_ERROR
WORKFLOW_NVLINK5_ERR WORKFLOW_NVLINK5_ERR: 144 NVLINK_SAW_ERROR 145 NVLINK_RLW_ERROR 146 NVLINK_TLW_ERROR
  147 NVLINK_TREX_ERROR 148 NVLINK_NVLPW_CTRL_ERROR 149 NVLINK_NETIR_ERROR 150 NVLINK_MSE_ERROR
XID_154 -: 154 GPU_RECOVERY_ACTION_CHANGED
CHECK_MECHANICALS CONTACT_SUPPORT: 54 SILENT_RUNNING_PWR_REDUCED_CLOCKING
CHECK_UVM SYMPATHETIC_REPORT_SOLO: 159 ~CHI_NON_DATA_ERROR
UPDATE_SWFW UPDATE_SWFW: 78 VGPU_START_ERROR
CONTACT_SUPPORT -: 142 ~NVENC3_ERROR
IGNORE CONTACT_SUPPORT: 14 ~FAKE_ERROR 38 ~FECS_ERR_WATCHDOG_TIMEOUT 43 ~RESETCHANNEL_VERIF_ERROR
  44 ~GR_FAULT_DURING_CTXSW 67 ~FECS_ERR_VERIF_VIOLATION 92 EXCESSIVE_SBE_INTERRUPTS
  93 INFOROM_ERASE_LIMIT_EXCEEDED 121 C2C_ERROR 141 ~FAST_PATH_ERROR 152 ~DLA_SMMU_ERROR 153 ~DLA_TIMEOUT
  157 RESOURCE_RETIREMENT_FAILURE
IGNORE CHECK_APP/CUDA: 37 ~FECS_ERR_UNIMP_FIRMWARE_METHOD
IGNORE INVESTIGATE_SW: 66 ~FECS_ERR_REG_ACCESS_VIOLATION 160 CHANNEL_RETIREMENT_EVENT
  161 CHANNEL_RETIREMENT_FAILURE
IGNORE XID_137_FLOW: 108 NVLINK_REMOTE_TRANSLATION_ERROR 137 NVLINK_PRIV_ERR
IGNORE IGNORE: 63 INFOROM_DRAM_RETIREMENT_EVENT 106 SMBPBI_TEST_MESSAGE 107 SMBPBI_TEST_MESSAGE_SILENT
- -: 162 PSHC_REENGAGED 163 PSHC_DISENGAGED 164 PSHC_LOW_LIFETIME 165 PSHC_ZERO_LIFETIME
  166 NVLINK_SECURE_CRYPTO_ERR 167 PCIE_FATAL_TIMEOUT 168 REDUCED_GPU_MEMORY_CAPACITY 169 SEC2_HALT_ERROR
  170 NVLINK_SECURE_OTHER 171 UNCORRECTABLE_DRAM_ERROR 172 UNCORRECTABLE_SRAM_ERROR
"""

_MEANINGS = {
    13: "the program used the GPU wrongly",
    31: "the program accessed memory that isn't its own",
    43: "the program was stopped after a fault of its own",
    45: "work was cleaned up after an earlier error",
    48: "uncorrectable memory error",
    63: "a row of memory was remapped",
    64: "remapping a row of memory failed",
    79: "the GPU has fallen off the bus",
    94: "memory error, contained to one program",
    95: "memory error, not contained to one program",
    119: "the GPU's system processor timed out",
}
# Other actions are plain enough in lower case.
_ADVICE = {
    "RESTART_APP": "restart the program",
    "RESTART_VM": "restart the virtual machine",
    "RESTART_BM": "reboot the node",
    "RESET_GPU": "reset the GPU",
    "IGNORE": "nothing to do",
    "CHECK_APP/CUDA": "check the program",
    "INVESTIGATE_SW": "check driver and firmware",
    "UPDATE_SWFW": "update driver and firmware",
    "CHECK_MECHANICALS": "check seat and power cables",
    "CHECK_UVM": "check unified memory (UVM)",
    "INVESTIGATE_SW_USER": "check the user's software",
    "INVESTIGATE_LINK_SI": "check the link's signal integrity",
    "SYMPATHETIC_REPORT_SOLO": "report it if no other XID came",
    "WORKFLOW_XID_13": "run compute-sanitizer",
    "WORKFLOW_XID_31": "run compute-sanitizer",
    "WORKFLOW_NVLINK_ERR": "follow NVIDIA's workflow for NVLink errors",
    "WORKFLOW_NVLINK5_ERR": "follow NVIDIA's workflow for NVLink 5 errors",
    "WORKFLOW_XID_45": "follow the other XID; if there is none, restart the fabric manager",
    "WORKFLOW_XID_48": "reset the GPU; with XID 63 or 64 drain the node first",
    "XID_137_FLOW": "follow NVIDIA's workflow for XID 137",
    "XID_154": "see recovery_action",
}


def describe(xid: int) -> Tuple[str, Dict[str, Union[int, str]]]:
    """Return an XID in a sentence, and its number, mnemonic and actions for the detail of an event."""
    found = re.search(rf"\s{xid} (\S+)", _CATALOGUE)
    head = "" if found is None else _CATALOGUE[: found.start()].rpartition(":")[0].rpartition("\n")[2]
    immediate, later = ("" if action == "-" else action for action in (head or "- -").split())
    mnemonic = "" if found is None else found[1].replace("~", "ROBUST_CHANNEL_")
    meaning = _MEANINGS.get(xid, "" if mnemonic else "not among NVIDIA's current XIDs up to 172")
    # Nothing follows from IGNORE as the investigatory action.
    actions = filter(None, [immediate, "" if later == "IGNORE" else later])
    steps = dict.fromkeys(_ADVICE.get(each, each.lower().replace("_", " ")) for each in actions)
    advice = f"; NVIDIA: {'; if it returns, '.join(steps)}" if steps else ""
    text = ": ".join(filter(None, (f"XID {xid} {mnemonic}".rstrip(), meaning))) + advice
    return text, {"xid": xid, "mnemonic": mnemonic, "immediate": immediate, "investigatory": later}
