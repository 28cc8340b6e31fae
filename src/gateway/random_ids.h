#pragma once

#include <string>

#include "base/random.h"
#include "recipe/reply.h"

namespace galley::gateway {

// Ids of requests, replies and calls. One thread.
class RandomIds final : public recipe::IdSource {
 public:
  explicit RandomIds(Seed seed) : random_(seed, 0) {}
  std::string next_id() override;

 private:
  Random random_;
};

}  // namespace galley::gateway
