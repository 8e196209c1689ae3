"""Asks NVML all that monitors ask (nvidia-smi, nvitop, nvtop, gpustat, PyTorch, NCCL), through NVIDIA's own bindings.

    nvml_monitor.py monitor

A question is either answered, and then plausibly, or not supported; every other outcome is said and is a failure. Needs
`nvidia-ml-py`; run it with `katydid run -- python nvml_monitor.py monitor`.
"""

import os
import sys

from said import item, need, run, same

nvml = need("pynvml")

FINE = {nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_NO_PERMISSION, nvml.NVML_ERROR_FUNCTION_NOT_FOUND}
OF_SYSTEM = """nvmlSystemGetDriverVersion nvmlSystemGetNVMLVersion nvmlSystemGetCudaDriverVersion
    nvmlSystemGetCudaDriverVersion_v2 nvmlDeviceGetCount nvmlUnitGetCount nvmlSystemGetHicVersion
    nvmlSystemGetConfComputeState nvmlSystemGetDriverBranch""".split()
# Questions about a device, and what they take besides it.
OF_DEVICE = {
    name: ()
    for name in """nvmlDeviceGetName nvmlDeviceGetUUID nvmlDeviceGetSerial nvmlDeviceGetVbiosVersion nvmlDeviceGetIndex
    nvmlDeviceGetMinorNumber nvmlDeviceGetBoardId nvmlDeviceGetBoardPartNumber nvmlDeviceGetBrand nvmlDeviceGetArchitecture
    nvmlDeviceGetPciInfo nvmlDeviceGetMemoryInfo nvmlDeviceGetBAR1MemoryInfo nvmlDeviceGetMemoryBusWidth
    nvmlDeviceGetUtilizationRates nvmlDeviceGetEncoderUtilization nvmlDeviceGetDecoderUtilization nvmlDeviceGetJpgUtilization
    nvmlDeviceGetOfaUtilization nvmlDeviceGetComputeRunningProcesses nvmlDeviceGetGraphicsRunningProcesses
    nvmlDeviceGetMPSComputeRunningProcesses nvmlDeviceGetCudaComputeCapability nvmlDeviceGetComputeMode
    nvmlDeviceGetPersistenceMode nvmlDeviceGetPerformanceState nvmlDeviceGetPowerUsage nvmlDeviceGetPowerManagementLimit
    nvmlDeviceGetEnforcedPowerLimit nvmlDeviceGetTotalEnergyConsumption nvmlDeviceGetFanSpeed nvmlDeviceGetNumFans
    nvmlDeviceGetEccMode nvmlDeviceGetMigMode nvmlDeviceGetMaxMigDeviceCount nvmlDeviceGetDisplayMode nvmlDeviceGetDisplayActive
    nvmlDeviceGetCurrPcieLinkGeneration nvmlDeviceGetCurrPcieLinkWidth nvmlDeviceGetMaxPcieLinkGeneration
    nvmlDeviceGetMaxPcieLinkWidth nvmlDeviceGetPcieReplayCounter nvmlDeviceGetCurrentClocksEventReasons
    nvmlDeviceGetSupportedClocksEventReasons nvmlDeviceGetSupportedMemoryClocks nvmlDeviceGetVirtualizationMode
    nvmlDeviceGetAccountingMode nvmlDeviceGetAccountingPids nvmlDeviceGetRetiredPagesPendingStatus nvmlDeviceGetRemappedRows
    nvmlDeviceGetRowRemapperHistogram nvmlDeviceGetBridgeChipInfo nvmlDeviceGetGspFirmwareVersion nvmlDeviceGetGspFirmwareMode
    nvmlDeviceGetEncoderSessions nvmlDeviceGetEncoderStats nvmlDeviceGetFBCStats nvmlDeviceGetFBCSessions
    nvmlDeviceGetGpuOperationMode nvmlDeviceGetConfComputeMemSizeInfo nvmlDeviceGetDynamicPstatesInfo
    nvmlDeviceGetSupportedPerformanceStates nvmlDeviceGetAttributes nvmlDeviceIsMigDeviceHandle nvmlDeviceGetNumGpuCores
    nvmlDeviceGetInforomImageVersion nvmlDeviceGetPowerSource nvmlDeviceGetAddressingMode nvmlDeviceGetRepairStatus""".split()
} | {
    "nvmlDeviceGetTemperature": (nvml.NVML_TEMPERATURE_GPU,),
    "nvmlDeviceGetTemperatureThreshold": (nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,),
    "nvmlDeviceGetClockInfo": (nvml.NVML_CLOCK_SM,),
    "nvmlDeviceGetMaxClockInfo": (nvml.NVML_CLOCK_MEM,),
    "nvmlDeviceGetClock": (nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_ID_CURRENT),
    "nvmlDeviceGetPcieThroughput": (nvml.NVML_PCIE_UTIL_RX_BYTES,),
    "nvmlDeviceGetProcessUtilization": (0,),
    "nvmlDeviceGetSamples": (nvml.NVML_GPU_UTILIZATION_SAMPLES, 0),
    "nvmlDeviceGetRetiredPages": (nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,),
    "nvmlDeviceGetTotalEccErrors": (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
    "nvmlDeviceGetDetailedEccErrors": (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
    "nvmlDeviceGetViolationStatus": (nvml.NVML_PERF_POLICY_POWER,),
    "nvmlDeviceGetFanSpeed_v2": (0,),
    "nvmlDeviceGetCpuAffinity": (4,),
    "nvmlDeviceGetCpuAffinityWithinScope": (4, nvml.NVML_AFFINITY_SCOPE_NODE),
    "nvmlDeviceGetMemoryAffinity": (4, nvml.NVML_AFFINITY_SCOPE_NODE),
    "nvmlDeviceGetTopologyNearestGpus": (nvml.NVML_TOPOLOGY_SYSTEM,),
    "nvmlDeviceGetNvLinkState": (0,),
    "nvmlDeviceGetNvLinkVersion": (0,),
    "nvmlDeviceGetNvLinkRemotePciInfo": (0,),
    "nvmlDeviceGetFieldValues": ([nvml.NVML_FI_DEV_MEMORY_TEMP, nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION],),
    "nvmlDeviceGetAPIRestriction": (nvml.NVML_RESTRICTED_API_SET_APPLICATION_CLOCKS,),
}

failures = []
# What is asked of fans, or of other GPUs, where there are none, is a wrong argument to some drivers: the same to all who ask.
wrong_arguments = []


def ask(name, *arguments):
    """The answer, or None where it is not supported."""
    try:
        return getattr(nvml, name)(*arguments)
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_INVALID_ARGUMENT:
            wrong_arguments.append(name)
        elif error.value not in FINE:
            failures.append(f"{name}: {error}")
    except Exception as error:
        failures.append(f"{name}: {error!r}")


def expect(condition, what):
    if not condition:
        failures.append(what)


@item
def monitor():
    """Every question, to the system and to each device."""
    # Beside softcuda itself there is no NVML.
    if os.environ.get("ITEM_DRIVER") != "soft" or "KATYDID_SERVER" in os.environ:
        ask_all()
    if failures:
        sys.exit("\n".join(failures))
    same("wrong_answers", 0)
    if os.environ.get("ITEM_DRIVER") != "soft":
        same("wrong_arguments", " ".join(wrong_arguments) or "none")


def ask_all():
    """Asks the system, and about each device."""
    nvml.nvmlInit()
    answered = sum(ask(name) is not None for name in OF_SYSTEM)
    for index in range(nvml.nvmlDeviceGetCount()):
        answered += about(index)
    nvml.nvmlShutdown()
    print(f"{answered} questions answered of {len(OF_SYSTEM)} and {len(OF_DEVICE)} a device")


def about(index):
    """All that is asked about a device; how much of it was answered."""
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    answered = sum(ask(name, device, *arguments) is not None for name, arguments in OF_DEVICE.items())
    memory = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
    expect(memory.total == memory.used + memory.free + memory.reserved or memory.used + memory.free <= memory.total, "memory")
    uuid, address = nvml.nvmlDeviceGetUUID(device), nvml.nvmlDeviceGetPciInfo(device).busId
    again = [nvml.nvmlDeviceGetHandleByUUID(uuid), nvml.nvmlDeviceGetHandleByPciBusId(address)]
    expect([nvml.nvmlDeviceGetIndex(one) for one in again] == [index, index], "one device has two names")
    for process in nvml.nvmlDeviceGetComputeRunningProcesses(device):
        expect(process.pid > 0, "a process without a number")
    if os.environ.get("ITEM_DRIVER") != "soft":
        same(f"device_{index}", f"{uuid} {address} {nvml.nvmlDeviceGetName(device)} {memory.total}")
    return answered


run()
