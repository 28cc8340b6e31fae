#include "gateway/key_quota.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fmt/core.h>
#include <utility>

namespace galley::gateway {
namespace {

constexpr double kSecondsPerMinute = 60.0;
// A place comes free when an answer ends, which nobody knows: soon.
constexpr Duration kPlaceRetryAfter = std::chrono::seconds(1);

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

TokenBucket::TokenBucket(std::int64_t per_minute, TimeNs now)
    : per_second_(static_cast<double>(per_minute) / kSecondsPerMinute),
      level_(static_cast<double>(per_minute)),
      at_(now) {}

double TokenBucket::level(TimeNs now) const {
  return std::min(level_ + per_second_ * seconds(now - at_), per_second_ * kSecondsPerMinute);
}

Duration TokenBucket::wait(TimeNs now) const {
  const double missing = 1.0 - level(now);
  if (per_second_ == 0 || missing <= 0) {
    return Duration(0);
  }
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(std::ceil(missing / per_second_ * 1e9) / 1e9));
}

void TokenBucket::take(std::int64_t amount, TimeNs now) {
  level_ = level(now) - static_cast<double>(amount);
  at_ = now;
}

KeyQuota::Tenant& KeyQuota::tenant_of(const ApiKey& key, TimeNs now) {
  return tenants_.try_emplace(key.name, key.limits, now).first->second;
}

std::optional<KeyQuota::Refusal> KeyQuota::refusal(const ApiKey& key,
                                                   const Tenant& tenant,
                                                   TimeNs now) {
  const auto limit = [&key]<class... Args>(fmt::format_string<Args...> text, Args&&... args) {
    return Error{.code = Code::kOverloaded,
                 .what = fmt::format("The limit of '{}' is reached: {}.", key.name,
                                     fmt::format(text, std::forward<Args>(args)...))};
  };
  // Of several that are reached the one that lasts longest: only then it is worth trying again.
  std::optional<Refusal> longest;
  const auto wait_for = [&longest](Duration wait, Error error) {
    if (wait > Duration(0) && (!longest || wait > longest->retry_after)) {
      longest = Refusal{std::move(error), wait};
    }
  };
  if (key.limits.concurrency > 0 && tenant.running >= key.limits.concurrency) {
    wait_for(kPlaceRetryAfter, limit("{} requests at once", key.limits.concurrency));
  }
  wait_for(tenant.requests.wait(now),
           limit("{} requests a minute", key.limits.requests_per_minute));
  wait_for(tenant.tokens.wait(now),
           limit("{} weighted tokens a minute", key.limits.tokens_per_minute));
  return longest;
}

std::optional<KeyQuota::Refusal> KeyQuota::refuses(const ApiKey& key) {
  const TimeNs now = clock_.now();
  const MutexLock lock(mutex_);
  return refusal(key, tenant_of(key, now), now);
}

std::expected<std::unique_ptr<KeyQuota::Place>, KeyQuota::Refusal> KeyQuota::enter(
    const ApiKey& key) {
  const TimeNs now = clock_.now();
  const MutexLock lock(mutex_);
  Tenant& tenant = tenant_of(key, now);
  if (auto refused = refusal(key, tenant, now)) {
    return std::unexpected(*std::move(refused));
  }
  tenant.requests.take(1, now);
  ++tenant.running;
  return std::make_unique<Place>(*this, key.name);
}

std::optional<KeyQuota::Refusal> KeyQuota::add(const std::string& name,
                                               std::int64_t count,
                                               std::int64_t together) {
  const MutexLock lock(mutex_);
  Tenant& tenant = tenants_.at(name);
  if (tenant.concurrency > 0 && together > tenant.concurrency) {
    return Refusal{
        {.code = Code::kInvalidArgument,
         .what = fmt::format("{} answers are more than the {} at once that '{}' may have.",
                             together, tenant.concurrency, name),
         .where = "n"},
        Duration(0)};
  }
  if (tenant.concurrency > 0 && tenant.running + count > tenant.concurrency) {
    return Refusal{{.code = Code::kOverloaded,
                    .what = fmt::format("The limit of '{}' is reached: {} answers at once.", name,
                                        tenant.concurrency)},
                   kPlaceRetryAfter};
  }
  tenant.running += count;
  return std::nullopt;
}

void KeyQuota::leave(const std::string& tenant, std::int64_t count) {
  const MutexLock lock(mutex_);
  tenants_.at(tenant).running -= count;
}

void KeyQuota::charge(const std::string& tenant, std::int64_t weighted_tokens) {
  const TimeNs now = clock_.now();
  const MutexLock lock(mutex_);
  tenants_.at(tenant).tokens.take(weighted_tokens, now);
}

}  // namespace galley::gateway
