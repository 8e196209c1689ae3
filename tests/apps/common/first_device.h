// How programs of the driver API begin: with the first device and its primary context, and most with a kernel.
#pragma once

#include <cuda.h>

#include "check.h"
#include "embedded_ptx.h"

// Starts the driver; the context is retained once, and current.
inline void begin_on_first(CUdevice *device, CUcontext *context) {
    OK(cuInit(0));
    OK(cuDeviceGet(device, 0));
    OK(cuDevicePrimaryCtxRetain(context, *device));
    OK(cuCtxSetCurrent(*context));
}

// `add` of MODULE_PTX in the current context; its module lives as long.
inline CUfunction load_add() {
    CUmodule module;
    CUfunction add;
    OK(cuModuleLoadData(&module, MODULE_PTX));
    OK(cuModuleGetFunction(&add, module, "add"));
    return add;
}
