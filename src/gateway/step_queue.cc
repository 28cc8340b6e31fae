#include "gateway/step_queue.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"

namespace galley::gateway {
namespace {

std::size_t heap_bytes(const std::string& text) {
  const std::size_t inside = std::string().capacity();  // a short text is no heap
  return text.capacity() > inside ? text.capacity() + 1 : 0;
}

std::size_t bytes_of(const recipe::TokenLogprob& logprob) {
  std::size_t sum = sizeof logprob + heap_bytes(logprob.token) +
                    logprob.top.capacity() * sizeof(recipe::TopLogprob);
  for (const recipe::TopLogprob& top : logprob.top) {
    sum += heap_bytes(top.token);
  }
  return sum;
}

}  // namespace

void StepQueue::push_tokens(std::span<const TokenId> ids,
                            std::span<const recipe::TokenLogprob> logprobs) {
  GALLEY_ASSERT(ids.size() < std::size_t{1} << 31U);
  GALLEY_ASSERT(logprobs.empty() || logprobs.size() == ids.size());
  sizes_.push_back({static_cast<std::uint32_t>(ids.size()) & 0x7FFF'FFFFU, !logprobs.empty()});
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  for (const recipe::TokenLogprob& logprob : logprobs) {
    logprob_bytes_ += bytes_of(logprobs_.emplace_back(logprob));
  }
}

bool StepQueue::pop(Step& step) {
  if (started_) {
    step = *std::exchange(started_, std::nullopt);
    return true;
  }
  if (!sizes_.empty()) {
    const StepSize size = sizes_.front();
    sizes_.pop_front();
    Tokens& tokens =
        std::holds_alternative<Tokens>(step) ? std::get<Tokens>(step) : step.emplace<Tokens>();
    const auto ids_end = ids_.begin() + static_cast<std::ptrdiff_t>(size.tokens);
    tokens.ids.assign(ids_.begin(), ids_end);
    ids_.erase(ids_.begin(), ids_end);
    tokens.logprobs.clear();
    for (std::uint32_t i = 0; size.has_logprobs != 0 && i < size.tokens; ++i) {
      logprob_bytes_ -= bytes_of(logprobs_.front());
      tokens.logprobs.push_back(std::move(logprobs_.front()));
      logprobs_.pop_front();
    }
    return true;
  }
  if (end_) {
    std::visit([&step](auto& end) { step = std::move(end); }, *end_);
    end_.reset();
    return true;
  }
  return false;
}

std::size_t StepQueue::bytes() const {
  return ids_.size() * sizeof(TokenId) + sizes_.size() * sizeof(StepSize) + logprob_bytes_;
}

void StepQueue::clear() {
  *this = StepQueue();
}

}  // namespace galley::gateway
