#include "engine/block_names.h"

#include <algorithm>
#include <fmt/core.h>
#include <span>

#include "base/fnv1a.h"
#include "cache/block_store.h"
#include "cache/sha256.h"

namespace galley::engine {
namespace {

constexpr std::string_view kNobody = "default";  // the namespace of requests without a tenant
constexpr char kHashSign = '#';

}  // namespace

// A tenant's length says where its name ends.
cache::BlockKey block_root(const std::string& layout,
                           const std::string& weights,
                           std::string_view salt,
                           const recipe::Generation& generation) {
  return cache::root_key({.layout = layout,
                          .weights = weights,
                          .salt = fmt::format("{}/{}:{}/{}", salt, generation.tenant.size(),
                                              generation.tenant, generation.user)});
}

// What could be another's name, or is none, gets a hash; no name without one has the sign.
std::string block_space(const recipe::Generation& generation) {
  const std::string& tenant = generation.tenant;
  if (tenant.empty()) {
    return std::string(kNobody);
  }
  if (tenant.size() <= cache::kNamespaceBytesMax && tenant != kNobody &&
      tenant.find(kHashSign) == std::string::npos) {
    return tenant;
  }
  const cache::Sha256Digest digest = cache::sha256(tenant);
  cache::BlockKey hash;
  std::ranges::copy(std::span(digest).first(hash.bytes.size()), hash.bytes.begin());
  const std::string tail = kHashSign + to_string(hash);
  return tenant.substr(0, cache::kNamespaceBytesMax - tail.size()) + tail;
}

std::uint64_t block_number(std::string_view text) {
  Fnv1a hash;
  hash.add(text);
  return hash.value();
}

}  // namespace galley::engine
