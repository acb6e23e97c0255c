#include "misbehave.h"

#include <algorithm>

namespace simulated {

namespace {

const std::vector<Misbehaviour>& all() {
  static const auto* made = new std::vector<Misbehaviour>{};
  return *made;
}

}  // namespace

std::vector<const Misbehaviour*> misbehaviours_of(const std::string& op) {
  std::vector<const Misbehaviour*> found;
  for (const Misbehaviour& each : all()) {
    if (std::find(each.ops.begin(), each.ops.end(), op) != each.ops.end()) {
      found.push_back(&each);
    }
  }
  return found;
}

}  // namespace simulated
