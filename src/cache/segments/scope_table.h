#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "cache/segments/format.h"

namespace galley::cache {

// Numbers for namespaces and for scopes (namespace, layout, numerics), so that an entry of the
// index holds two bytes for them. They are never taken back. Any thread may call it; at() and
// space_of() take no lock.
class ScopeTable {
 public:
  static constexpr std::size_t kScopesMax = 32'767;

  ScopeTable();

  struct Scope {
    std::uint16_t space{};
    std::uint64_t layout{};
    std::uint64_t numerics{};
  };
  // Of a number that number() gave.
  [[nodiscard]] const Scope& at(std::uint16_t scope) const { return scopes_[scope]; }

  // Nothing when kScopesMax are known already.
  std::optional<std::uint16_t> number(const TableScope& scope);
  // Nothing when no scope has this namespace.
  [[nodiscard]] std::optional<std::uint16_t> space(std::string_view name) const;
  [[nodiscard]] std::string space_name(std::uint16_t space) const;
  [[nodiscard]] std::size_t spaces() const;
  [[nodiscard]] TableScope full(std::uint16_t scope) const;

 private:
  mutable Mutex mutex_;
  std::map<TableScope, std::uint16_t> numbers_ GALLEY_GUARDED_BY(mutex_);
  std::map<std::string, std::uint16_t, std::less<>> spaces_ GALLEY_GUARDED_BY(mutex_);
  std::vector<std::string> space_names_ GALLEY_GUARDED_BY(mutex_);
  // Written once, before the number is given to anyone; so read without the lock. Pages of it that
  // no scope needs are never touched.
  std::unique_ptr<Scope[]> scopes_;
};

}  // namespace galley::cache
