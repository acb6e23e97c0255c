#include "settings.h"

#include <c10/core/AllocatorConfig.h>

#include <string>

#include "faults.h"

namespace simulated {

namespace {

using Config = c10::CachingAllocator::AcceleratorAllocatorConfig;

// torch knows these keys and reads their values, but nothing here uses them.
constexpr const char* kWithoutEffect[] = {
    "large_segment_size_mb",       "max_non_split_rounding_mb",    "garbage_collection_threshold",
    "expandable_segments",         "pinned_use_background_threads", "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb"};

void look_at(const std::string& text) {
  const c10::CachingAllocator::ConfigTokenizer tokens(text);
  for (size_t at = 0; at < tokens.size(); at = tokens.skipKey(at) + 2) {
    for (const char* key : kWithoutEffect) {
      if (tokens[at] == key) {  // not a warning: torch would print it bypassing Python's warnings
        TORCH_CHECK_VALUE(false, "simulated device: the allocator setting ", key, " has no effect here: leave it out");
      }
    }
  }
}

}  // namespace

void register_settings(bool on) {
  Config::getConfigParserHook() = on ? std::function<void(const std::string&)>(look_at) : nullptr;
}

size_t max_split_size() {
  return on(Fault::allocator_settings_ignored) ? SIZE_MAX : Config::max_split_size();
}

size_t roundup_divisions(size_t bytes) {
  return on(Fault::allocator_settings_ignored) ? 0 : Config::roundup_power2_divisions(bytes);
}

}  // namespace simulated
