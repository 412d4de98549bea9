// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace headway::hybrid {

/// Memory of bodies. Large blocks are kept for later ones, up to a limit: fresh pages cost as much as a lookup.
[[nodiscard]] void* allocate_body(std::size_t num_bytes);
void free_body(void* memory, std::size_t num_bytes) noexcept;

/// Allocator of bodies. Elements without a value stay uninitialised, since messages overwrite them.
template <class T>
struct BodyAllocator {
  using value_type = T;

  BodyAllocator() = default;
  // Allocators convert implicitly.
  template <class Other>
  BodyAllocator(BodyAllocator<Other> const&) noexcept {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] T* allocate(std::size_t count) { return static_cast<T*>(allocate_body(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t count) noexcept { free_body(memory, count * sizeof(T)); }
  template <class U>
  void construct(U* element) noexcept(std::is_nothrow_default_constructible_v<U>) {
    ::new (static_cast<void*>(element)) U;
  }
  template <class U, class... Arguments>
  void construct(U* element, Arguments&&... arguments) {
    std::construct_at(element, std::forward<Arguments>(arguments)...);
  }
  template <class Other>
  bool operator==(BodyAllocator<Other> const&) const noexcept {
    return true;
  }
};

/// Bytes of a message.
using Body = std::vector<std::byte, BodyAllocator<std::byte>>;

}  // namespace headway::hybrid
