#pragma once

#include <cstdint>
#include <expected>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/result.h"
#include "gateway/api_keys.h"

namespace galley::gateway {

// What a token of an answer counts beside a computed one of a prompt: about what it costs.
inline constexpr std::int64_t kAnswerTokenWeight = 4;

// An allowance that comes back steadily, up to a minute's worth. Taking more than is there leaves a
// debt, which is paid first. Pure.
class TokenBucket {
 public:
  TokenBucket(std::int64_t per_minute, TimeNs now);

  // How long until something is there; 0 when there is.
  [[nodiscard]] Duration wait(TimeNs now) const;
  void take(std::int64_t amount, TimeNs now);

 private:
  [[nodiscard]] double level(TimeNs now) const;

  double per_second_;
  double level_;  // at `at_`
  TimeNs at_;
};

// Whether a tenant may begin one more generation, by the limits of its key. Any thread.
class KeyQuota {
 public:
  explicit KeyQuota(const Clock& clock) : clock_(clock) {}

  // One generation of a tenant, which ends with it.
  class Place {
   public:
    Place(KeyQuota& quota, std::string tenant) : quota_(quota), tenant_(std::move(tenant)) {}
    ~Place() { quota_.leave(tenant_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    void charge(std::int64_t weighted_tokens) { quota_.charge(tenant_, weighted_tokens); }

   private:
    KeyQuota& quota_;
    std::string tenant_;
  };

  struct Refusal {
    Error error;           // kOverloaded, names the limit
    Duration retry_after;  // when trying again can help
  };

  // What enter() would say, without entering.
  [[nodiscard]] std::optional<Refusal> refuses(const ApiKey& key) GALLEY_EXCLUDES(mutex_);
  [[nodiscard]] std::expected<std::unique_ptr<Place>, Refusal> enter(const ApiKey& key)
      GALLEY_EXCLUDES(mutex_);

 private:
  struct Tenant {
    Tenant(const KeyLimits& limits, TimeNs now)
        : requests(limits.requests_per_minute, now), tokens(limits.tokens_per_minute, now) {}
    std::int64_t running = 0;
    TokenBucket requests;
    TokenBucket tokens;
  };

  [[nodiscard]] Tenant& tenant_of(const ApiKey& key, TimeNs now) GALLEY_REQUIRES(mutex_);
  [[nodiscard]] static std::optional<Refusal> refusal(const ApiKey& key,
                                                      const Tenant& tenant,
                                                      TimeNs now);
  void leave(const std::string& tenant) GALLEY_EXCLUDES(mutex_);
  void charge(const std::string& tenant, std::int64_t weighted_tokens) GALLEY_EXCLUDES(mutex_);

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Tenant> tenants_
      GALLEY_GUARDED_BY(mutex_);  // that ever came; keys bound them
};

}  // namespace galley::gateway
