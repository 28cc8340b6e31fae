#pragma once

#include <string>

#include "base/random.h"
#include "recipe/reply.h"

namespace galley::recipe {

// Generated ids: 20 characters of [A-Za-z0-9], repeatable from a seed. One thread.
class RandomIds final : public IdSource {
 public:
  explicit RandomIds(Seed seed) : random_(seed, 0) {}
  std::string next_id() override;

 private:
  Random random_;
};

}  // namespace galley::recipe
