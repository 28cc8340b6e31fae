#include "gateway/sources/resume.h"

#include <algorithm>
#include <chrono>

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;

constexpr Duration kFirstWait = 100ms;
constexpr Duration kLongestWait = 2s;

}  // namespace

bool can_go_on(const recipe::Generation& generation, std::size_t delivered) {
  if (delivered == 0) {
    return true;
  }
  const recipe::Sampling& sampling = generation.sampling;
  const bool has_noise = sampling.seed && sampling.temperature > 0;
  const bool has_penalties = sampling.presence_penalty != 0 || sampling.frequency_penalty != 0;
  const bool has_grammar = generation.constraint.kind != recipe::Constraint::Kind::kNone &&
                           generation.constraint.kind != recipe::Constraint::Kind::kToolCall;
  return !has_noise && !has_penalties && !has_grammar;
}

bool tries_again(Code code, const Attempts& attempts) {
  return code == Code::kUnavailable && attempts.made < kAttemptsMax &&
         attempts.fruitless < kFruitlessMax;
}

Duration wait_before(const Attempts& attempts) {
  Duration wait = kFirstWait;
  for (std::size_t i = 1; i < attempts.fruitless && wait < kLongestWait; ++i) {
    wait *= 2;
  }
  return std::min(wait, kLongestWait);
}

}  // namespace galley::gateway
