// Planted faults that end or block the process, or the device for good, at one call of one op.
//
// $SIMULATED_FAULT_OP names the op (aten::exp; overloads with a dot), $SIMULATED_FAULT_CALL its n-th call of the
// process, the first by default.

#pragma once

#include <string>

namespace simulated {

// Called with every op's name: does what the planted fault says where it is due. Throws where it fails the call.
void meet_hazards(const std::string& op);

// Throws once a sticky error has lost the device to this process.
void refuse_if_lost();

}  // namespace simulated
