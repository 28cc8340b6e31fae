#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gateway/batch_lines.h"
#include "gateway/generation_reply.h"

namespace galley::gateway {

// Nobody is slow here but the thread that encodes, which may be making the prompt of a long body:
// an answer with many logprobs waits for it.
inline constexpr ReplyLimits kBatchReplyLimits{.waiting_bytes_max = std::size_t{64} << 20U};

// Lines of this run that have their answer.
struct BatchFigures {
  std::size_t answered{};  // the two below together
  std::size_t succeeded{};
  std::size_t failed{};  // answered with an error
};

// What a run does with what it makes. Both are called on its thread.
struct BatchCalls {
  // A whole line, its end included.
  std::function<Result<void>(std::string_view line)> write;
  // Often, also while nothing changes.
  std::function<void(const BatchFigures& figures)> progress;
};

// Of a batch that others share the machine with. By default nobody does.
struct BatchTerms {
  std::string tenant;
  // The only protocol that lines may ask for; a line that asks for another is answered with an
  // error.
  std::optional<recipe::Protocol> protocol;
  // Whether one more line may begin while so many generations of this batch are under way; asked
  // again soon.
  std::function<bool(std::size_t under_way)> may_start;
  // Whether to stop: what is under way has no answer then. Asked often.
  std::function<bool()> stops;
};

// Answers every entry through GenerationReply, as the server would, in whatever order they end.
// `window` generations are under way at most, one for each choice that a line asks for; a line that
// asks for more begins alone. Prompts are made on the calling thread, which also encodes the
// answers; `context.ids` is used there only. A line that cannot be answered gets its protocol's
// error object, as the server would send it. Errors: those of `write`, and kUnavailable when the
// source is not ready any more, which is no fault of the lines that are left; they have no answer
// then. kCancelled when `terms.stops` says so.
[[nodiscard]] Result<BatchFigures> answer_batch(std::span<const BatchEntry> entries,
                                                const ReplyContext& context,
                                                std::size_t window,
                                                const BatchCalls& calls,
                                                const BatchTerms& terms = {});

}  // namespace galley::gateway
