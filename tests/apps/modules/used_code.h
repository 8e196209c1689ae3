// Functions of used_code_other.cu that used_code.cu calls.
#pragma once

// Has one of many kernels change the value at this device address.
void stir_over_there(unsigned *value);
