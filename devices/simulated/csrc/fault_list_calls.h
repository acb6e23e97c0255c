// The names of the planted faults of calls: transfers, devices, dispatch, random numbers, gradients, processes.

#pragma once

#define SIMULATED_CALL_FAULTS(F)
