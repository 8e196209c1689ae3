//! Unsupported functions: those that change a device, those about virtual GPUs and units, and those with unknown arguments.
//! Each reports its name once.

#![expect(unsafe_code, reason = "exports C symbols")]

use std::sync::atomic::{AtomicBool, Ordering};

use katydid_client::output::report;
use katydid_wire::nvml::code;

/// Reports a name, the first time.
fn refuse(was_reported: &AtomicBool, name: &str) -> u32 {
    if !was_reported.swap(true, Ordering::Relaxed) {
        report(format_args!("{name} is not supported"));
    }
    code::NOT_SUPPORTED
}

macro_rules! refused {
    ($($name:ident)*) => {$(
        /// Returns `NVML_ERROR_NOT_SUPPORTED`, whatever its arguments.
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> u32 {
            static IS_REPORTED: AtomicBool = AtomicBool::new(false);
            refuse(&IS_REPORTED, stringify!($name))
        }
    )*};
}

refused! {
    nvmlComputeInstanceDestroy
    nvmlComputeInstanceGetInfo
    nvmlComputeInstanceGetInfo_v2
    nvmlDeviceClearAccountingPids
    nvmlDeviceClearCpuAffinity
    nvmlDeviceClearEccErrorCounts
    nvmlDeviceClearFieldValues
    nvmlDeviceCreateGpuInstance
    nvmlDeviceCreateGpuInstanceWithPlacement
    nvmlDeviceDiscoverGpus
    nvmlDeviceFreezeNvLinkUtilizationCounter
    nvmlDeviceGetAccountingStats_v2
    nvmlDeviceGetActiveVgpus
    nvmlDeviceGetAdaptiveTgpModeInfo_v1
    nvmlDeviceGetAttributes
    nvmlDeviceGetBBXTimeData_v1
    nvmlDeviceGetBankRemapperStatus_v1
    nvmlDeviceGetConfComputeGpuAttestationReport
    nvmlDeviceGetConfComputeGpuCertificate
    nvmlDeviceGetCreatableVgpus
    nvmlDeviceGetDeviceHandleFromMigDeviceHandle
    nvmlDeviceGetGpuFabricInfo_v4
    nvmlDeviceGetGpuInstanceById
    nvmlDeviceGetGpuInstancePossiblePlacements
    nvmlDeviceGetGpuInstancePossiblePlacements_v2
    nvmlDeviceGetGpuInstanceProfileInfo
    nvmlDeviceGetGpuInstanceProfileInfoByIdV
    nvmlDeviceGetGpuInstanceProfileInfoV
    nvmlDeviceGetGpuInstanceRemainingCapacity
    nvmlDeviceGetGpuInstances
    nvmlDeviceGetGridLicensableFeatures
    nvmlDeviceGetGridLicensableFeatures_v2
    nvmlDeviceGetGridLicensableFeatures_v3
    nvmlDeviceGetHostname_v1
    nvmlDeviceGetMemoryLimits_v1
    nvmlDeviceGetMigDeviceHandleByIndex
    nvmlDeviceGetNvLinkTelemetrySamples_v1
    nvmlDeviceGetPgpuMetadataString
    nvmlDeviceGetPowerMizerMode_v1
    nvmlDeviceGetProcessesUtilizationInfo
    nvmlDeviceGetRemappedRows_v2
    nvmlDeviceGetRetiredPages_v2
    nvmlDeviceGetRunningProcessDetailList
    nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts
    nvmlDeviceGetSupportedVgpus
    nvmlDeviceGetUnrepairableMemoryFlag_v1
    nvmlDeviceGetVgpuCapabilities
    nvmlDeviceGetVgpuHeterogeneousMode
    nvmlDeviceGetVgpuInstancesUtilizationInfo
    nvmlDeviceGetVgpuMetadata
    nvmlDeviceGetVgpuProcessUtilization
    nvmlDeviceGetVgpuProcessesUtilizationInfo
    nvmlDeviceGetVgpuSchedulerCapabilities
    nvmlDeviceGetVgpuSchedulerLog
    nvmlDeviceGetVgpuSchedulerLog_v2
    nvmlDeviceGetVgpuSchedulerState
    nvmlDeviceGetVgpuSchedulerState_v2
    nvmlDeviceGetVgpuTypeCreatablePlacements
    nvmlDeviceGetVgpuTypeSupportedPlacements
    nvmlDeviceGetVgpuUtilization
    nvmlDeviceModifyDrainState
    nvmlDevicePerfMetricsGetSamples_v1
    nvmlDevicePowerSmoothingActivatePresetProfile
    nvmlDevicePowerSmoothingSetState
    nvmlDevicePowerSmoothingUpdatePresetProfileParam
    nvmlDeviceQueryDrainState
    nvmlDeviceReadPRMCounters_v1
    nvmlDeviceReadWritePRM_v1
    nvmlDeviceRemoveGpu
    nvmlDeviceRemoveGpu_v2
    nvmlDeviceResetApplicationsClocks
    nvmlDeviceResetGpuLockedClocks
    nvmlDeviceResetMemoryLockedClocks
    nvmlDeviceResetNvLinkErrorCounters
    nvmlDeviceResetNvLinkUtilizationCounter
    nvmlDeviceSetAPIRestriction
    nvmlDeviceSetAccountingMode
    nvmlDeviceSetAdaptiveTgpMode_v1
    nvmlDeviceSetApplicationsClocks
    nvmlDeviceSetAutoBoostedClocksEnabled
    nvmlDeviceSetClockOffsets
    nvmlDeviceSetComputeMode
    nvmlDeviceSetConfComputeUnprotectedMemSize
    nvmlDeviceSetCpuAffinity
    nvmlDeviceSetDefaultAutoBoostedClocksEnabled
    nvmlDeviceSetDefaultFanSpeed_v2
    nvmlDeviceSetDramEncryptionMode
    nvmlDeviceSetDriverModel
    nvmlDeviceSetEccMode
    nvmlDeviceSetFanControlPolicy
    nvmlDeviceSetFanSpeed_v2
    nvmlDeviceSetGpcClkVfOffset
    nvmlDeviceSetGpuLockedClocks
    nvmlDeviceSetGpuOperationMode
    nvmlDeviceSetHostname_v1
    nvmlDeviceSetMemClkVfOffset
    nvmlDeviceSetMemoryLimits_v1
    nvmlDeviceSetMemoryLockedClocks
    nvmlDeviceSetMigMode
    nvmlDeviceSetNvLinkDeviceLowPowerThreshold
    nvmlDeviceSetNvLinkUtilizationControl
    nvmlDeviceSetNvlinkBwMode
    nvmlDeviceSetNvlinkBwModeAsync_v1
    nvmlDeviceSetPersistenceMode
    nvmlDeviceSetPowerManagementLimit
    nvmlDeviceSetPowerManagementLimit_v2
    nvmlDeviceSetPowerMizerMode_v1
    nvmlDeviceSetRusdSettings_v1
    nvmlDeviceSetTemperatureThreshold
    nvmlDeviceSetVgpuCapabilities
    nvmlDeviceSetVgpuHeterogeneousMode
    nvmlDeviceSetVgpuSchedulerState
    nvmlDeviceSetVgpuSchedulerState_v2
    nvmlDeviceSetVirtualizationMode
    nvmlDeviceValidateInforom
    nvmlDeviceVgpuForceGspUnload
    nvmlDeviceWorkloadPowerProfileClearRequestedProfiles
    nvmlDeviceWorkloadPowerProfileSetRequestedProfiles
    nvmlDeviceWorkloadPowerProfileUpdateProfiles_v1
    nvmlEventSetGetContextCount_v1
    nvmlEventSetGetContextData_v1
    nvmlEventSetGetContextInfo_v1
    nvmlEventSetGetGpuOperationalEventContextLegacyXid_v1
    nvmlEventSetRegisterGpuOperationalEvents_v1
    nvmlEventSetWait_v3
    nvmlGetVgpuCompatibility
    nvmlGetVgpuDriverCapabilities
    nvmlGetVgpuVersion
    nvmlGpmMetricsGet
    nvmlGpmMigSampleGet
    nvmlGpmQueryDeviceSupport
    nvmlGpmQueryIfStreamingEnabled
    nvmlGpmSampleAlloc
    nvmlGpmSampleFree
    nvmlGpmSampleGet
    nvmlGpmSetStreamingEnabled
    nvmlGpuInstanceCreateComputeInstance
    nvmlGpuInstanceCreateComputeInstanceWithPlacement
    nvmlGpuInstanceDestroy
    nvmlGpuInstanceGetActiveVgpus
    nvmlGpuInstanceGetComputeInstanceById
    nvmlGpuInstanceGetComputeInstancePossiblePlacements
    nvmlGpuInstanceGetComputeInstanceProfileInfo
    nvmlGpuInstanceGetComputeInstanceProfileInfoV
    nvmlGpuInstanceGetComputeInstanceRemainingCapacity
    nvmlGpuInstanceGetComputeInstances
    nvmlGpuInstanceGetCreatableVgpus
    nvmlGpuInstanceGetInfo
    nvmlGpuInstanceGetVgpuHeterogeneousMode
    nvmlGpuInstanceGetVgpuSchedulerLog
    nvmlGpuInstanceGetVgpuSchedulerLog_v2
    nvmlGpuInstanceGetVgpuSchedulerState
    nvmlGpuInstanceGetVgpuSchedulerState_v2
    nvmlGpuInstanceGetVgpuTypeCreatablePlacements
    nvmlGpuInstanceSetVgpuHeterogeneousMode
    nvmlGpuInstanceSetVgpuSchedulerState
    nvmlGpuInstanceSetVgpuSchedulerState_v2
    nvmlSetVgpuVersion
    nvmlSystemEventSetCreate
    nvmlSystemEventSetFree
    nvmlSystemEventSetWait
    nvmlSystemGetCPER_v1
    nvmlSystemRegisterEvents
    nvmlSystemSetConfComputeGpusReadyState
    nvmlSystemSetConfComputeKeyRotationThresholdInfo
    nvmlSystemSetNvlinkBwMode
    nvmlUnitGetDevices
    nvmlUnitGetFanSpeedInfo
    nvmlUnitGetHandleByIndex
    nvmlUnitGetLedState
    nvmlUnitGetPsuInfo
    nvmlUnitGetTemperature
    nvmlUnitGetUnitInfo
    nvmlUnitSetLedState
    nvmlVgpuInstanceClearAccountingPids
    nvmlVgpuInstanceGetAccountingMode
    nvmlVgpuInstanceGetAccountingPids
    nvmlVgpuInstanceGetAccountingStats
    nvmlVgpuInstanceGetEccMode
    nvmlVgpuInstanceGetEncoderCapacity
    nvmlVgpuInstanceGetEncoderSessions
    nvmlVgpuInstanceGetEncoderStats
    nvmlVgpuInstanceGetFBCSessions
    nvmlVgpuInstanceGetFBCStats
    nvmlVgpuInstanceGetFbUsage
    nvmlVgpuInstanceGetFrameRateLimit
    nvmlVgpuInstanceGetGpuInstanceId
    nvmlVgpuInstanceGetGpuPciId
    nvmlVgpuInstanceGetLicenseInfo
    nvmlVgpuInstanceGetLicenseInfo_v2
    nvmlVgpuInstanceGetLicenseStatus
    nvmlVgpuInstanceGetMdevUUID
    nvmlVgpuInstanceGetMetadata
    nvmlVgpuInstanceGetPlacementId
    nvmlVgpuInstanceGetRuntimeStateSize
    nvmlVgpuInstanceGetType
    nvmlVgpuInstanceGetUUID
    nvmlVgpuInstanceGetVmDriverVersion
    nvmlVgpuInstanceGetVmID
    nvmlVgpuInstanceSetEncoderCapacity
    nvmlVgpuTypeGetBAR1Info
    nvmlVgpuTypeGetCapabilities
    nvmlVgpuTypeGetClass
    nvmlVgpuTypeGetDeviceID
    nvmlVgpuTypeGetFbReservation
    nvmlVgpuTypeGetFrameRateLimit
    nvmlVgpuTypeGetFramebufferSize
    nvmlVgpuTypeGetGpuInstanceProfileId
    nvmlVgpuTypeGetGspHeapSize
    nvmlVgpuTypeGetLicense
    nvmlVgpuTypeGetMaxInstances
    nvmlVgpuTypeGetMaxInstancesPerGpuInstance
    nvmlVgpuTypeGetMaxInstancesPerVm
    nvmlVgpuTypeGetName
    nvmlVgpuTypeGetNumDisplayHeads
    nvmlVgpuTypeGetResolution
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_refused() {
        assert_eq!([nvmlDeviceSetPersistenceMode(), nvmlDeviceSetPersistenceMode()], [code::NOT_SUPPORTED; 2]);
    }
}
