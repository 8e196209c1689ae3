//! Remote NVML: the functions that a program may call on its server's library, and the encoding of calls.
//!
//! The table has only queries: no call here changes a device. A call is a frame whose opcode is the function's position in the
//! table, from 1. Its payload has the arguments in order, and the reply has the function's outputs, also in order. The reply's
//! status is NVML's code.
//!
//! | argument | C | in the call | in the reply |
//! |---|---|---|---|
//! | `Device` | a handle | its number in the order of the server | |
//! | `Value` | up to 32 bits | 8 bytes | |
//! | `Wide` | 64 bits | 8 bytes | |
//! | `Text` | a string | length (4), bytes | |
//! | `Out(n)` | a pointer to n bytes | 1 if given, else 0 (1) | n bytes, if given |
//! | `TextBuffer` | a buffer and its length | length (4) | as many bytes |
//! | `Versioned` | a structure that begins with its size and version | length (4), bytes | as many bytes |
//! | `List(n)` | a pointer to a count, and one to elements of n bytes | count (4), 1 if elements are wanted (1) | count (4), elements |
//! | `ListThenCount(n)` | as `List`, but the pointer to the elements comes first | as `List` | as `List` |
//! | `Devices` | a pointer to a count, and one to handles | as `List(4)` | count (4), their numbers (4 each) |
//! | `SizedList(n)` | a count, and a pointer to elements of n bytes that are read and written | count (4), elements | elements |
//! | `DeviceOut` | a pointer to a handle | | its number (4) |

/// A kind of argument, see the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentKind {
    /// A handle of a device, as its number on the server.
    Device,
    /// An integer of up to 32 bits.
    Value,
    /// A number of 64 bits.
    Wide,
    /// A string that ends in NUL.
    Text,
    /// A buffer of this many bytes that the function fills.
    Out(usize),
    /// A buffer and its length, which the function fills with text.
    TextBuffer,
    /// A structure that contains its own size.
    Versioned,
    /// A list whose length the library determines.
    List(usize),
    /// A list like `List`, whose count follows the pointer to its elements.
    ListThenCount(usize),
    /// A list of device handles, whose length the library determines.
    Devices,
    /// A list whose length the caller determines.
    SizedList(usize),
    /// An output that is a device.
    DeviceOut,
}

/// A function that programs may call.
#[derive(Debug)]
pub struct Function {
    /// Name of the function in the library.
    pub name: &'static str,
    /// Arguments in their order in the C declaration.
    pub arguments: &'static [ArgumentKind],
}

/// Longest text or list in a message, in bytes.
pub const MAX_NVML_TEXT_BYTES: usize = 1 << 20;

/// Codes of NVML that Katydid itself returns.
pub mod code {
    /// `NVML_SUCCESS`: the call succeeded.
    pub const SUCCESS: u32 = 0;
    /// `NVML_ERROR_UNINITIALIZED`: the program has not called `nvmlInit_v2`.
    pub const UNINITIALIZED: u32 = 1;
    /// `NVML_ERROR_INVALID_ARGUMENT`: an argument is null or out of range.
    pub const INVALID_ARGUMENT: u32 = 2;
    /// `NVML_ERROR_NOT_SUPPORTED`: the device or Katydid does not offer this.
    pub const NOT_SUPPORTED: u32 = 3;
    /// `NVML_ERROR_NOT_FOUND`: no device or entry matches.
    pub const NOT_FOUND: u32 = 6;
    /// `NVML_ERROR_INSUFFICIENT_SIZE`: the caller's buffer is too small.
    pub const INSUFFICIENT_SIZE: u32 = 7;
    /// `NVML_ERROR_DRIVER_NOT_LOADED`: no driver answers.
    pub const DRIVER_NOT_LOADED: u32 = 9;
    /// `NVML_ERROR_TIMEOUT`: no event came in the time given.
    pub const TIMEOUT: u32 = 10;
    /// `NVML_ERROR_FUNCTION_NOT_FOUND`: the server's library lacks the function.
    pub const FUNCTION_NOT_FOUND: u32 = 13;
    /// `NVML_ERROR_GPU_IS_LOST`: the device or the server no longer answers.
    pub const GPU_IS_LOST: u32 = 15;
    /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`: a structure has an unknown version.
    pub const ARGUMENT_VERSION_MISMATCH: u32 = 25;
    /// `NVML_ERROR_UNKNOWN`: an internal error.
    pub const UNKNOWN: u32 = 999;
}

/// Passes the table to a macro: `name: argument argument …;` for each function.
#[macro_export]
macro_rules! nvml_functions {
    ($use_them:ident) => {
        $use_them! {
            nvmlSystemGetDriverVersion: TextBuffer;
            nvmlSystemGetNVMLVersion: TextBuffer;
            nvmlSystemGetCudaDriverVersion: Out(4);
            nvmlSystemGetCudaDriverVersion_v2: Out(4);
            nvmlSystemGetProcessName: Value TextBuffer;
            nvmlDeviceGetCount: Out(4);
            nvmlDeviceGetCount_v2: Out(4);
            nvmlDeviceGetHandleByIndex: Value DeviceOut;
            nvmlDeviceGetHandleByIndex_v2: Value DeviceOut;
            nvmlDeviceGetHandleByUUID: Text DeviceOut;
            nvmlDeviceGetHandleBySerial: Text DeviceOut;
            nvmlDeviceGetHandleByPciBusId: Text DeviceOut;
            nvmlDeviceGetHandleByPciBusId_v2: Text DeviceOut;
            nvmlDeviceGetName: Device TextBuffer;
            nvmlDeviceGetUUID: Device TextBuffer;
            nvmlDeviceGetSerial: Device TextBuffer;
            nvmlDeviceGetVbiosVersion: Device TextBuffer;
            nvmlDeviceGetBoardPartNumber: Device TextBuffer;
            nvmlDeviceGetInforomVersion: Device Value TextBuffer;
            nvmlDeviceGetInforomImageVersion: Device TextBuffer;
            nvmlDeviceGetInforomConfigurationChecksum: Device Out(4);
            nvmlDeviceGetGspFirmwareVersion: Device Out(64);
            nvmlDeviceGetGspFirmwareMode: Device Out(4) Out(4);
            nvmlDeviceGetPciInfo: Device Out(52);
            nvmlDeviceGetPciInfo_v2: Device Out(52);
            nvmlDeviceGetPciInfo_v3: Device Out(68);
            nvmlDeviceGetPciInfoExt: Device Versioned;
            nvmlDeviceGetBrand: Device Out(4);
            nvmlDeviceGetIndex: Device Out(4);
            nvmlDeviceGetMinorNumber: Device Out(4);
            nvmlDeviceGetModuleId: Device Out(4);
            nvmlDeviceGetBoardId: Device Out(4);
            nvmlDeviceGetMultiGpuBoard: Device Out(4);
            nvmlDeviceGetArchitecture: Device Out(4);
            nvmlDeviceGetBusType: Device Out(4);
            nvmlDeviceGetNumGpuCores: Device Out(4);
            nvmlDeviceGetMemoryBusWidth: Device Out(4);
            nvmlDeviceGetIrqNum: Device Out(4);
            nvmlDeviceGetNumaNodeId: Device Out(4);
            nvmlDeviceGetPersistenceMode: Device Out(4);
            nvmlDeviceGetComputeMode: Device Out(4);
            nvmlDeviceGetDisplayMode: Device Out(4);
            nvmlDeviceGetDisplayActive: Device Out(4);
            nvmlDeviceGetPerformanceState: Device Out(4);
            nvmlDeviceGetPowerState: Device Out(4);
            nvmlDeviceGetPowerManagementMode: Device Out(4);
            nvmlDeviceGetPowerManagementLimit: Device Out(4);
            nvmlDeviceGetPowerManagementDefaultLimit: Device Out(4);
            nvmlDeviceGetPowerManagementLimitConstraints: Device Out(4) Out(4);
            nvmlDeviceGetEnforcedPowerLimit: Device Out(4);
            nvmlDeviceGetPowerUsage: Device Out(4);
            nvmlDeviceGetPowerSource: Device Out(4);
            nvmlDeviceGetTotalEnergyConsumption: Device Out(8);
            nvmlDeviceGetTemperature: Device Value Out(4);
            nvmlDeviceGetTemperatureV: Device Versioned;
            nvmlDeviceGetTemperatureThreshold: Device Value Out(4);
            nvmlDeviceGetMarginTemperature: Device Versioned;
            nvmlDeviceGetNumFans: Device Out(4);
            nvmlDeviceGetFanSpeed: Device Out(4);
            nvmlDeviceGetFanSpeed_v2: Device Value Out(4);
            nvmlDeviceGetFanSpeedRPM: Device Versioned;
            nvmlDeviceGetTargetFanSpeed: Device Value Out(4);
            nvmlDeviceGetMinMaxFanSpeed: Device Out(4) Out(4);
            nvmlDeviceGetClockInfo: Device Value Out(4);
            nvmlDeviceGetMaxClockInfo: Device Value Out(4);
            nvmlDeviceGetClock: Device Value Value Out(4);
            nvmlDeviceGetMaxCustomerBoostClock: Device Value Out(4);
            nvmlDeviceGetApplicationsClock: Device Value Out(4);
            nvmlDeviceGetDefaultApplicationsClock: Device Value Out(4);
            nvmlDeviceGetAdaptiveClockInfoStatus: Device Out(4);
            nvmlDeviceGetAutoBoostedClocksEnabled: Device Out(4) Out(4);
            nvmlDeviceGetSupportedMemoryClocks: Device List(4);
            nvmlDeviceGetSupportedGraphicsClocks: Device Value List(4);
            nvmlDeviceGetCurrentClocksThrottleReasons: Device Out(8);
            nvmlDeviceGetSupportedClocksThrottleReasons: Device Out(8);
            nvmlDeviceGetCurrentClocksEventReasons: Device Out(8);
            nvmlDeviceGetSupportedClocksEventReasons: Device Out(8);
            nvmlDeviceGetSupportedEventTypes: Device Out(8);
            nvmlDeviceGetCurrentClockFreqs: Device Versioned;
            nvmlDeviceGetPerformanceModes: Device Versioned;
            nvmlDeviceGetMemoryInfo: Device Out(24);
            nvmlDeviceGetMemoryInfo_v2: Device Versioned;
            nvmlDeviceGetBAR1MemoryInfo: Device Out(24);
            nvmlDeviceGetUtilizationRates: Device Out(8);
            nvmlDeviceGetEncoderUtilization: Device Out(4) Out(4);
            nvmlDeviceGetDecoderUtilization: Device Out(4) Out(4);
            nvmlDeviceGetJpgUtilization: Device Out(4) Out(4);
            nvmlDeviceGetOfaUtilization: Device Out(4) Out(4);
            nvmlDeviceGetEncoderCapacity: Device Value Out(4);
            nvmlDeviceGetEncoderStats: Device Out(4) Out(4) Out(4);
            nvmlDeviceGetFBCStats: Device Out(12);
            nvmlDeviceGetCudaComputeCapability: Device Out(4) Out(4);
            nvmlDeviceGetEccMode: Device Out(4) Out(4);
            nvmlDeviceGetDefaultEccMode: Device Out(4);
            nvmlDeviceGetTotalEccErrors: Device Value Value Out(8);
            nvmlDeviceGetMemoryErrorCounter: Device Value Value Value Out(8);
            nvmlDeviceGetRemappedRows: Device Out(4) Out(4) Out(4) Out(4);
            nvmlDeviceGetRetiredPagesPendingStatus: Device Out(4);
            nvmlDeviceGetMigMode: Device Out(4) Out(4);
            nvmlDeviceGetMaxMigDeviceCount: Device Out(4);
            nvmlDeviceIsMigDeviceHandle: Device Out(4);
            nvmlDeviceGetGpuInstanceId: Device Out(4);
            nvmlDeviceGetComputeInstanceId: Device Out(4);
            nvmlDeviceGetVirtualizationMode: Device Out(4);
            nvmlDeviceGetHostVgpuMode: Device Out(4);
            nvmlDeviceGetGpuOperationMode: Device Out(4) Out(4);
            nvmlDeviceGetDriverModel: Device Out(4) Out(4);
            nvmlDeviceGetAccountingMode: Device Out(4);
            nvmlDeviceGetAccountingBufferSize: Device Out(4);
            nvmlDeviceGetViolationStatus: Device Value Out(16);
            nvmlDeviceGetMaxPcieLinkGeneration: Device Out(4);
            nvmlDeviceGetGpuMaxPcieLinkGeneration: Device Out(4);
            nvmlDeviceGetMaxPcieLinkWidth: Device Out(4);
            nvmlDeviceGetCurrPcieLinkGeneration: Device Out(4);
            nvmlDeviceGetCurrPcieLinkWidth: Device Out(4);
            nvmlDeviceGetPcieSpeed: Device Out(4);
            nvmlDeviceGetPcieLinkMaxSpeed: Device Out(4);
            nvmlDeviceGetPcieReplayCounter: Device Out(4);
            nvmlDeviceGetPcieThroughput: Device Value Out(4);
            nvmlDeviceGetComputeRunningProcesses: Device List(16);
            nvmlDeviceGetComputeRunningProcesses_v2: Device List(24);
            nvmlDeviceGetComputeRunningProcesses_v3: Device List(24);
            nvmlDeviceGetGraphicsRunningProcesses: Device List(16);
            nvmlDeviceGetGraphicsRunningProcesses_v2: Device List(24);
            nvmlDeviceGetGraphicsRunningProcesses_v3: Device List(24);
            nvmlDeviceGetMPSComputeRunningProcesses_v2: Device List(24);
            nvmlDeviceGetMPSComputeRunningProcesses_v3: Device List(24);
            nvmlDeviceGetCpuAffinity: Device SizedList(8);
            nvmlDeviceGetTopologyCommonAncestor: Device Device Out(4);
            nvmlDeviceGetP2PStatus: Device Device Value Out(4);
            nvmlDeviceOnSameBoard: Device Device Out(4);
            nvmlDeviceGetNvLinkState: Device Value Out(4);
            nvmlDeviceGetNvLinkVersion: Device Value Out(4);
            nvmlDeviceGetNvLinkCapability: Device Value Value Out(4);
            nvmlDeviceGetNvLinkErrorCounter: Device Value Value Out(8);
            nvmlDeviceGetNvLinkRemoteDeviceType: Device Value Out(4);
            nvmlDeviceGetNvLinkRemotePciInfo_v2: Device Value Out(68);
            nvmlDeviceGetGpuFabricInfo: Device Out(28);
            nvmlDeviceGetGpuFabricInfoV: Device Versioned;
            nvmlDeviceGetPlatformInfo: Device Versioned;
            nvmlDeviceGetCapabilities: Device Versioned;
            nvmlDeviceGetC2cModeInfoV: Device Out(4);
            nvmlDeviceGetFieldValues: Device SizedList(40);
            nvmlDeviceGetMPSComputeRunningProcesses: Device List(16);
            nvmlDeviceGetProcessUtilization: Device ListThenCount(32) Wide;
            nvmlDeviceGetSamples: Device Value Wide Out(4) List(16);
            nvmlDeviceGetEncoderSessions: Device List(32);
            nvmlDeviceGetFBCSessions: Device List(48);
            nvmlDeviceGetAccountingPids: Device List(4);
            nvmlDeviceGetAccountingStats: Device Value Out(56);
            nvmlDeviceGetRetiredPages: Device Value List(8);
            nvmlDeviceGetDetailedEccErrors: Device Value Value Out(32);
            nvmlDeviceGetRowRemapperHistogram: Device Out(20);
            nvmlDeviceGetSramEccErrorStatus: Device Versioned;
            nvmlDeviceGetRepairStatus: Device Versioned;
            nvmlDeviceGetAddressingMode: Device Versioned;
            nvmlDeviceGetPdi: Device Versioned;
            nvmlDeviceGetAttributes_v2: Device Out(40);
            nvmlDeviceGetAPIRestriction: Device Value Out(4);
            nvmlDeviceGetBridgeChipInfo: Device Out(1028);
            nvmlDeviceGetClkMonStatus: Device Out(264);
            nvmlDeviceGetClockOffsets: Device Versioned;
            nvmlDeviceGetCoolerInfo: Device Versioned;
            nvmlDeviceGetThermalSettings: Device Value Out(64);
            nvmlDeviceGetFanControlPolicy_v2: Device Value Out(4);
            nvmlDeviceGetDynamicPstatesInfo: Device Out(132);
            nvmlDeviceGetSupportedPerformanceStates: Device TextBuffer;
            nvmlDeviceGetMinMaxClockOfPState: Device Value Value Out(4) Out(4);
            nvmlDeviceGetGpcClkVfOffset: Device Out(4);
            nvmlDeviceGetGpcClkMinMaxVfOffset: Device Out(4) Out(4);
            nvmlDeviceGetMemClkVfOffset: Device Out(4);
            nvmlDeviceGetMemClkMinMaxVfOffset: Device Out(4) Out(4);
            nvmlDeviceGetDriverModel_v2: Device Out(4) Out(4);
            nvmlDeviceGetLastBBXFlushTime: Device Out(8) Out(8);
            nvmlDeviceGetGridLicensableFeatures_v4: Device Out(860);
            nvmlDeviceGetDramEncryptionMode: Device Versioned Versioned;
            nvmlDeviceGetConfComputeMemSizeInfo: Device Out(16);
            nvmlDeviceGetConfComputeProtectedMemoryUsage: Device Out(24);
            nvmlDeviceGetCpuAffinityWithinScope: Device SizedList(8) Value;
            nvmlDeviceGetMemoryAffinity: Device SizedList(8) Value;
            nvmlDeviceGetTopologyNearestGpus: Device Value Devices;
            nvmlDeviceGetHandleByUUIDV: Versioned DeviceOut;
            nvmlDeviceGetNvLinkInfo: Device Versioned;
            nvmlDeviceGetNvLinkUtilizationControl: Device Value Value Out(8);
            nvmlDeviceGetNvLinkUtilizationCounter: Device Value Value Out(8) Out(8);
            nvmlDeviceGetNvlinkBwMode: Device Versioned;
            nvmlDeviceGetNvlinkSupportedBwModes: Device Versioned;
            nvmlDeviceWorkloadPowerProfileGetCurrentProfiles: Device Versioned;
            nvmlDeviceWorkloadPowerProfileGetProfilesInfo: Device Versioned;
            nvmlSystemGetTopologyGpuSet: Value Devices;
            nvmlSystemGetHicVersion: List(36);
            nvmlSystemGetNvlinkBwMode: Out(4);
            nvmlSystemGetDriverBranch: Versioned Value;
            nvmlSystemGetConfComputeCapabilities: Out(8);
            nvmlSystemGetConfComputeGpusReadyState: Out(4);
            nvmlSystemGetConfComputeKeyRotationThresholdInfo: Versioned;
            nvmlSystemGetConfComputeSettings: Versioned;
            nvmlSystemGetConfComputeState: Out(12);
            nvmlGetExcludedDeviceCount: Out(4);
            nvmlGetExcludedDeviceInfoByIndex: Value Out(148);
            nvmlUnitGetCount: Out(4);
            nvmlDeviceGetNvLinkRemotePciInfo: Device Value Out(52);
        }
    };
}

macro_rules! table {
    ($($name:ident: $($kind:ident $(($bytes:literal))?)*;)*) => {
        /// All functions, in the order of their numbers.
        pub static FUNCTIONS: &[Function] = &[
            $(Function { name: stringify!($name), arguments: &[$(ArgumentKind::$kind $(($bytes))?),*] },)*
        ];
    };
}

nvml_functions!(table);

/// Returns the function with a number.
pub fn function(opcode: u16) -> Option<&'static Function> {
    FUNCTIONS.get(usize::from(opcode).checked_sub(1)?)
}

/// Returns the number of a function.
pub fn opcode(name: &str) -> Option<u16> {
    FUNCTIONS.iter().position(|function| function.name == name).map(|at| at as u16 + 1)
}

/// Reads the bytes of one side, never beyond their end.
#[derive(Debug)]
pub struct ByteReader<'a>(pub &'a [u8]);

impl<'a> ByteReader<'a> {
    /// Takes the next `count` bytes; none if fewer are left.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (part, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(part)
    }

    /// Reads the next 32 bits.
    pub fn word(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// Reads the next 64 bits.
    pub fn wide(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Reads a length; none if it is above the limit.
    pub fn length(&mut self) -> Option<usize> {
        self.word().map(|length| length as usize).filter(|length| *length <= MAX_NVML_TEXT_BYTES)
    }

    /// Takes one byte, 0 or 1; none for any other.
    pub fn flag(&mut self) -> Option<bool> {
        match self.bytes(1)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    /// Returns whether all bytes were taken.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_to_their_functions() {
        for function in FUNCTIONS {
            let number = opcode(function.name).unwrap();
            assert!(std::ptr::eq(super::function(number).unwrap(), function), "{}", function.name);
            assert!(
                !function.name.replace("GpuSet", "").replace("Settings", "").contains("Set")
                    && function.arguments.len() <= 6,
                "{}",
                function.name
            );
        }
        assert!(super::function(0).is_none() && opcode("nvmlDeviceSetPersistenceMode").is_none());
    }

    /// Bytes that functions write, by name. Sources: NVIDIA's own declarations, `nvml.h` of the wheel `nvidia-nvml-dev-cu12`
    /// 12.9.79 by `sizeof` in C, and the ctypes structures of `nvidia-ml-py` 13.615.71, which agree.
    const LAYOUTS: &[(&str, &[usize])] = &[
        // nvmlPciInfo_v2_t (the new one without its second address), nvmlPciInfo_t
        ("nvmlDeviceGetPciInfo", &[52]),
        ("nvmlDeviceGetPciInfo_v2", &[52]),
        ("nvmlDeviceGetPciInfo_v3", &[68]),
        ("nvmlDeviceGetNvLinkRemotePciInfo", &[52]),
        ("nvmlDeviceGetNvLinkRemotePciInfo_v2", &[68]),
        // NVML_GSP_FIRMWARE_VERSION_BUF_SIZE
        ("nvmlDeviceGetGspFirmwareVersion", &[0x40]),
        // nvmlMemory_t, nvmlBAR1Memory_t, nvmlUtilization_t, nvmlFBCStats_t, nvmlViolationTime_t
        ("nvmlDeviceGetMemoryInfo", &[24]),
        ("nvmlDeviceGetConfComputeProtectedMemoryUsage", &[24]),
        ("nvmlDeviceGetBAR1MemoryInfo", &[24]),
        ("nvmlDeviceGetUtilizationRates", &[8]),
        ("nvmlDeviceGetFBCStats", &[12]),
        ("nvmlDeviceGetViolationStatus", &[16]),
        // nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessInfo_t
        ("nvmlDeviceGetComputeRunningProcesses", &[16]),
        ("nvmlDeviceGetComputeRunningProcesses_v2", &[24]),
        ("nvmlDeviceGetComputeRunningProcesses_v3", &[24]),
        ("nvmlDeviceGetGraphicsRunningProcesses", &[16]),
        ("nvmlDeviceGetGraphicsRunningProcesses_v2", &[24]),
        ("nvmlDeviceGetGraphicsRunningProcesses_v3", &[24]),
        ("nvmlDeviceGetMPSComputeRunningProcesses", &[16]),
        ("nvmlDeviceGetMPSComputeRunningProcesses_v2", &[24]),
        ("nvmlDeviceGetMPSComputeRunningProcesses_v3", &[24]),
        // nvmlGpuFabricInfo_t, nvmlC2cModeInfo_v1_t, nvmlFieldValue_t
        ("nvmlDeviceGetGpuFabricInfo", &[28]),
        ("nvmlDeviceGetC2cModeInfoV", &[4]),
        ("nvmlDeviceGetFieldValues", &[40]),
        // nvmlProcessUtilizationSample_t, nvmlValueType_t and nvmlSample_t, nvmlEncoderSessionInfo_t, nvmlFBCSessionInfo_t
        ("nvmlDeviceGetProcessUtilization", &[32]),
        ("nvmlDeviceGetSamples", &[4, 16]),
        ("nvmlDeviceGetEncoderSessions", &[32]),
        ("nvmlDeviceGetFBCSessions", &[48]),
        // nvmlAccountingStats_t, nvmlEccErrorCounts_t, nvmlRowRemapperHistogramValues_t, nvmlDeviceAttributes_t
        ("nvmlDeviceGetAccountingStats", &[56]),
        ("nvmlDeviceGetDetailedEccErrors", &[32]),
        ("nvmlDeviceGetRowRemapperHistogram", &[20]),
        ("nvmlDeviceGetAttributes_v2", &[40]),
        // nvmlBridgeChipHierarchy_t, nvmlClkMonStatus_t, nvmlGpuThermalSettings_t, nvmlGpuDynamicPstatesInfo_t
        ("nvmlDeviceGetBridgeChipInfo", &[1028]),
        ("nvmlDeviceGetClkMonStatus", &[264]),
        ("nvmlDeviceGetThermalSettings", &[64]),
        ("nvmlDeviceGetDynamicPstatesInfo", &[132]),
        // nvmlGridLicensableFeatures_t, nvmlConfComputeMemSizeInfo_t, nvmlNvLinkUtilizationControl_t
        ("nvmlDeviceGetGridLicensableFeatures_v4", &[860]),
        ("nvmlDeviceGetConfComputeMemSizeInfo", &[16]),
        ("nvmlDeviceGetNvLinkUtilizationControl", &[8]),
        // nvmlHwbcEntry_t, nvmlConfComputeSystemCaps_t, nvmlConfComputeSystemState_t, nvmlExcludedDeviceInfo_t
        ("nvmlSystemGetHicVersion", &[36]),
        ("nvmlSystemGetConfComputeCapabilities", &[8]),
        ("nvmlSystemGetConfComputeState", &[12]),
        ("nvmlGetExcludedDeviceInfoByIndex", &[148]),
    ];

    /// Returns the bytes that a function writes according to its arguments, one number for each structure.
    fn written(function: &Function) -> Vec<usize> {
        let size = |kind: &ArgumentKind| match kind {
            ArgumentKind::Out(size)
            | ArgumentKind::List(size)
            | ArgumentKind::ListThenCount(size)
            | ArgumentKind::SizedList(size) => Some(*size),
            _ => None,
        };
        function.arguments.iter().filter_map(size).collect()
    }

    #[test]
    fn structures_are_as_long_as_nvidia_declares_them() {
        for (name, sizes) in LAYOUTS {
            let function = super::function(opcode(name).unwrap()).unwrap();
            assert_eq!(&written(function), sizes, "{name}");
        }
        // Functions outside of the table write numbers of 32 or 64 bits.
        for function in FUNCTIONS.iter().filter(|function| !LAYOUTS.iter().any(|(name, _)| *name == function.name)) {
            assert!(written(function).iter().all(|size| matches!(size, 4 | 8)), "{}", function.name);
        }
    }

    /// Functions that NCCL 2.18 to 2.28 looks up by name, including the first version of those that have a second. NCCL works
    /// without any that is refused, as on a machine without NVLink.
    const ASKED_BY_NCCL: [&str; 15] = [
        "nvmlDeviceGetCount",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByPciBusId",
        "nvmlDeviceGetHandleByIndex",
        "nvmlDeviceGetIndex",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkRemotePciInfo",
        "nvmlDeviceGetNvLinkCapability",
        "nvmlDeviceGetCudaComputeCapability",
        "nvmlDeviceGetP2PStatus",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetPlatformInfo",
        "nvmlSystemGetConfComputeState",
        "nvmlSystemGetConfComputeSettings",
    ];

    #[test]
    fn all_that_nccl_asks_is_passed_on() {
        for name in ASKED_BY_NCCL {
            assert!(opcode(name).is_some(), "{name}");
        }
    }

    #[test]
    fn parts_end_where_the_bytes_do() {
        let mut parts = ByteReader(&[1, 0, 0, 0, 1, 2]);
        assert_eq!((parts.length(), parts.flag(), parts.flag(), parts.word()), (Some(1), Some(true), None, None));
        assert!(parts.is_empty());
        assert_eq!(ByteReader(&[0xff; 4]).length(), None);
    }
}
