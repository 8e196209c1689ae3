// What used_code.cu calls of used_code_other.cu.
#pragma once

// Has one of many kernels change the value at this device address.
void stir_over_there(unsigned *value);
