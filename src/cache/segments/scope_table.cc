#include "cache/segments/scope_table.h"

namespace galley::cache {

ScopeTable::ScopeTable() : scopes_(std::make_unique_for_overwrite<Scope[]>(kScopesMax)) {}

std::optional<std::uint16_t> ScopeTable::number(const TableScope& scope) {
  const MutexLock lock(mutex_);
  if (const auto it = numbers_.find(scope); it != numbers_.end()) {
    return it->second;
  }
  if (numbers_.size() == kScopesMax) {
    return std::nullopt;
  }
  const auto [space, fresh] =
      spaces_.try_emplace(scope.space, static_cast<std::uint16_t>(space_names_.size()));
  if (fresh) {
    space_names_.push_back(scope.space);
  }
  const auto number = static_cast<std::uint16_t>(numbers_.size());
  scopes_[number] = {.space = space->second, .layout = scope.layout, .numerics = scope.numerics};
  numbers_.emplace(scope, number);
  return number;
}

std::optional<std::uint16_t> ScopeTable::space(std::string_view name) const {
  const MutexLock lock(mutex_);
  const auto it = spaces_.find(name);
  return it == spaces_.end() ? std::nullopt : std::optional(it->second);
}

std::string ScopeTable::space_name(std::uint16_t space) const {
  const MutexLock lock(mutex_);
  return space_names_.at(space);
}

std::size_t ScopeTable::spaces() const {
  const MutexLock lock(mutex_);
  return space_names_.size();
}

TableScope ScopeTable::full(std::uint16_t scope) const {
  const Scope& found = at(scope);
  return {.space = space_name(found.space), .layout = found.layout, .numerics = found.numerics};
}

}  // namespace galley::cache
