// Planted faults that end or block the process, or the device for good, at one call of one op.
//
// $SIMULATED_FAULT_OP names the op (aten::exp; overloads with a dot), $SIMULATED_FAULT_CALL its n-th call of the
// process, the first by default.

#pragma once

#include <string>

namespace simulated {

// Called with every op's name: strikes when the planted fault is due. Throws if the fault makes the call raise.
void meet_hazards(const std::string& op);

// Throws after a sticky error has made the device unusable in this process.
void refuse_if_lost();

}  // namespace simulated
