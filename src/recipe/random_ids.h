#pragma once

#include <cstddef>
#include <string>

#include "base/random.h"
#include "recipe/reply.h"

namespace galley::recipe {

inline constexpr std::size_t kRandomIdBytes = 20;  // 119 bits: no two are ever equal

// Generated ids: kRandomIdBytes characters of [A-Za-z0-9], repeatable from a seed. One thread.
class RandomIds final : public IdSource {
 public:
  explicit RandomIds(Seed seed) : random_(seed, 0) {}
  std::string next_id() override;

 private:
  Random random_;
};

}  // namespace galley::recipe
