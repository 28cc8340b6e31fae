#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "recipe/event.h"
#include "recipe/marker_scanner.h"
#include "recipe/output_parser.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

// The stages of a reply and the markers that lead from one to the next, for both readings of it.
// Internal to the output parsers.
namespace galley::recipe {

enum class Stage : std::uint8_t {
  kReasoning,
  kAnswer,
  kJsonSearch,  // JSON mode, before the JSON
  kJsonBody,
  kJsonAfter,
  kStrayTag,  // after a closing tag that closes nothing
  kToolBlock,
  kDropped,  // after markup that the request did not ask for
};

enum Marker : std::uint8_t {
  kBlockOpen,
  kThinkClose,
  kStrayClose,
  kStrayMarker,
  kFence,
  kBrace,
  kBracket,
  kFenceEnd,
  kFirstStop,
};

// What the two readings look for.
struct MarkerRules {
  MarkerSet::Options stop;          // stop strings
  MarkerSet::Options newline_stop;  // those of newlines only
  bool markup = false;              // the opening of a tool block
  bool stray_markup = false;        // other pieces of markup
};

// The markers of each stage. Immutable; scanners keep pointers into it.
class StageMarkers {
 public:
  StageMarkers(const Request& request, bool by_spelling, const MarkerRules& rules);
  StageMarkers(const StageMarkers&) = delete;
  StageMarkers& operator=(const StageMarkers&) = delete;

  // Of a stage that looks for markers.
  [[nodiscard]] const MarkerSet& of(Stage stage) const;
  // The stop string of a marker from kFirstStop on.
  [[nodiscard]] const std::string& stop(int marker) const;
  [[nodiscard]] bool has_stop(std::string_view text) const;

 private:
  std::vector<std::string> stops_;
  MarkerSet reasoning_;
  MarkerSet answer_;
  MarkerSet json_search_;
  MarkerSet json_body_;
  MarkerSet json_after_;
};

// Refuses what OutputParser::feed_tokens() does not take, with kInvalidArgument.
[[nodiscard]] Result<void> check_tokens(const Tokenizer* tokenizer,
                                        std::span<const TokenId> ids,
                                        std::span<const TokenLogprob> logprobs);

// How a reply ends whose source said `reason`.
[[nodiscard]] FinishReason finish_reason(std::optional<SourceFinish> reason, std::int64_t calls);

}  // namespace galley::recipe
