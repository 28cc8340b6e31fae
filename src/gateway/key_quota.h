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

// Whether a tenant may begin one more request, by the limits of its key: a request has a place for
// each generation it begins. Any thread.
class KeyQuota {
 public:
  explicit KeyQuota(const Clock& clock) : clock_(clock) {}

  struct Refusal {
    Error error;           // kOverloaded, names the limit; kInvalidArgument: never possible
    Duration retry_after;  // when trying again can help; 0: never
  };

  // The generations of one request of a tenant, which end with it.
  class Place {
   public:
    Place(KeyQuota& quota, std::string tenant) : quota_(quota), tenant_(std::move(tenant)) {}
    ~Place() { quota_.leave(tenant_, count_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    // Room for so many generations in place of the one that enter() gave, all or none. Once.
    [[nodiscard]] std::optional<Refusal> widen(std::int64_t count) {
      auto refused = quota_.add(tenant_, count - count_, count);
      count_ = refused ? count_ : count;
      return refused;
    }
    void charge(std::int64_t weighted_tokens) { quota_.charge(tenant_, weighted_tokens); }

   private:
    KeyQuota& quota_;
    std::string tenant_;
    std::int64_t count_ = 1;
  };

  // What enter() would say, without entering.
  [[nodiscard]] std::optional<Refusal> refuses(const ApiKey& key) GALLEY_EXCLUDES(mutex_);
  [[nodiscard]] std::expected<std::unique_ptr<Place>, Refusal> enter(const ApiKey& key)
      GALLEY_EXCLUDES(mutex_);

 private:
  struct Tenant {
    Tenant(const KeyLimits& limits, TimeNs now)
        : concurrency(limits.concurrency),
          requests(limits.requests_per_minute, now),
          tokens(limits.tokens_per_minute, now) {}
    const std::int64_t concurrency;
    std::int64_t running = 0;  // generations
    TokenBucket requests;
    TokenBucket tokens;
  };

  [[nodiscard]] Tenant& tenant_of(const ApiKey& key, TimeNs now) GALLEY_REQUIRES(mutex_);
  [[nodiscard]] static std::optional<Refusal> refusal(const ApiKey& key,
                                                      const Tenant& tenant,
                                                      TimeNs now);
  [[nodiscard]] std::optional<Refusal> add(const std::string& tenant,
                                           std::int64_t count,
                                           std::int64_t together) GALLEY_EXCLUDES(mutex_);
  void leave(const std::string& tenant, std::int64_t count) GALLEY_EXCLUDES(mutex_);
  void charge(const std::string& tenant, std::int64_t weighted_tokens) GALLEY_EXCLUDES(mutex_);

  const Clock& clock_;
  Mutex mutex_;
  std::map<std::string, Tenant> tenants_
      GALLEY_GUARDED_BY(mutex_);  // that ever came; keys bound them
};

}  // namespace galley::gateway
