// SPDX-License-Identifier: Apache-2.0

#include "lookup_registry.hpp"

#include "headway/base/status.hpp"

#include <map>
#include <mutex>

namespace headway::embedding {

namespace {

/// Weak pointers: a name is free again once its lookup is destroyed.
struct Registry {
  std::mutex mutex;
  std::map<std::string, c10::weak_intrusive_ptr<TensorLookup>> lookups;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

void register_lookup(std::string const& name, c10::intrusive_ptr<TensorLookup> const& lookup) {
  auto& [mutex, lookups] = registry();
  std::lock_guard const lock(mutex);
  std::erase_if(lookups, [](auto const& entry) { return entry.second.expired(); });
  for (auto const& [other_name, weak] : lookups) {
    bool const is_same = weak.lock() == lookup;
    base::expects(is_same || other_name != name, "another lookup is registered as '" + name + "'");
    base::expects(!is_same || other_name == name, "the lookup is registered as '" + other_name + "' already");
  }
  lookups.insert_or_assign(name, c10::weak_intrusive_ptr<TensorLookup>(lookup));
}

c10::intrusive_ptr<TensorLookup> registered_lookup(std::string const& name) {
  auto& [mutex, lookups] = registry();
  std::lock_guard const lock(mutex);
  auto const found = lookups.find(name);
  auto lookup = found == lookups.end() ? c10::intrusive_ptr<TensorLookup>() : found->second.lock();
  base::expects(lookup != nullptr, "no lookup is registered as '" + name + "' in this process: call its register_as()");
  return lookup;
}

std::string registered_name(c10::intrusive_ptr<TensorLookup> const& lookup) {
  auto& [mutex, lookups] = registry();
  std::lock_guard const lock(mutex);
  for (auto const& [name, weak] : lookups) {
    if (weak.lock() == lookup) return name;
  }
  throw base::UsageError("a lookup without a name cannot be saved or copied: call its register_as() before");
}

}  // namespace headway::embedding
