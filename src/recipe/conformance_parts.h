#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "recipe/conformance.h"
#include "recipe/event.h"
#include "recipe/json.h"
#include "recipe/output_parser.h"
#include "recipe/prompt.h"
#include "recipe/request.h"

// What the checks of golden records share. Internal to conformance.
namespace galley::recipe {

using Differences = std::vector<std::string>;

// --- reading records -----------------------------------------------------------------------------

// Values of a record that is not what the formats say are read as empty or 0: such a record fails
// its checks, it cannot break the checker.
[[nodiscard]] std::string string_of(const Json& value);
[[nodiscard]] std::int64_t int_of(const Json& value);
[[nodiscard]] std::span<const JsonMember> members_of(const Json& value);
[[nodiscard]] std::span<const Json> elements_of(const Json& value);
[[nodiscard]] std::string text_of(const Json& object, std::string_view key);
[[nodiscard]] std::int64_t integer_of(const Json& object, std::string_view key);
[[nodiscard]] bool flag_of(const Json& object, std::string_view key);
[[nodiscard]] const Json& member_of(const Json& object, std::string_view key);

// --- comparing -----------------------------------------------------------------------------------

// First place where two JSON values differ, key order free; nullopt when equal.
[[nodiscard]] std::optional<std::string> first_difference(const Json& want,
                                                          const Json& got,
                                                          const std::string& path);
void expect_json(const Json& want, const Json& got, const std::string& what, Differences& out);
// Texts are compared byte for byte; the report shows the first difference with some context,
// escaped.
void expect_text(std::string_view want,
                 std::string_view got,
                 std::string_view what,
                 Differences& out);
// FNV-1a of the text (spec recipe 9.2).
[[nodiscard]] std::string fnv(std::string_view text);
// Ids against the record's list, count and hash, at least one of which it has to have.
void expect_ids(const Json& record, std::span<const TokenId> got, Differences& out);
void expect_prompt_ids(const Json& record,
                       const Prompt& prompt,
                       ModelVersion version,
                       const ConformanceTokenizers& tokenizers,
                       Differences& out);
void expect_error(const Json& record, bool exact, const Error& error, Differences& out);

// --- requests ------------------------------------------------------------------------------------

// The record's `body`, under its `p`, `v` and `opt`.
[[nodiscard]] Result<Request> request_of(const Json& record);

void check_render(const Json& record, const ConformanceTokenizers& tokenizers, Differences& out);
void check_error(const Json& record, Differences& out);
void check_max_tokens(const Json& record, Differences& out);
void check_image(const Json& record, Differences& out);

// --- replies -------------------------------------------------------------------------------------

// A piece of a recorded reply: text that counts `tokens`, or ids.
struct Piece {
  std::string text;
  std::vector<TokenId> ids;
  std::int64_t tokens = 0;
};

struct RecordedReply {
  std::vector<Json> events;  // as sent, not yet canonical
  Json body;
  std::size_t pieces_read = 0;
  std::string problem;
};

// nullopt: the source ended without a reason.
[[nodiscard]] std::optional<SourceFinish> finish_of(const Json& value);
[[nodiscard]] RecordedReply reply_to(const Request& request,
                                     std::span<const Piece> pieces,
                                     std::optional<SourceFinish> finish,
                                     std::shared_ptr<const Tokenizer> tokenizer,
                                     const Started& started);
// The canonical stream of spec recipe 9.2; `terminal` gets the response of the terminal event.
[[nodiscard]] JsonArray canonical_stream(std::span<const Json> events,
                                         Json& terminal,
                                         Differences& out);

void check_parse(const Json& record, Differences& out);
void check_tokens(const Json& record, const ConformanceTokenizers& tokenizers, Differences& out);
void check_cuts(const Json& record, Differences& out);

// --- tokenizer -----------------------------------------------------------------------------------

// `added`: control tokens are recognised by their spelling.
void check_encode(const Json& record, bool added, const Tokenizer& tokenizer, Differences& out);
void check_decode(const Json& record, const ConformanceTokenizers& tokenizers, Differences& out);

// --- vectors -------------------------------------------------------------------------------------

void check_render_vector(const Json& entry,
                         const ConformanceTokenizers& tokenizers,
                         Differences& out);
void check_tokenize_vector(const Json& entry,
                           const ConformanceTokenizers& tokenizers,
                           Differences& out);
void check_injection_vector(const Json& entry,
                            const ConformanceTokenizers& tokenizers,
                            Differences& out);
void check_formatter_vector(const Json& entry,
                            const ConformanceTokenizers& tokenizers,
                            RecordCheck& check);
void check_parse_vector(const Json& entry, Differences& out);
void check_events_vector(const Json& entry, Differences& out);
void check_error_vector(const Json& entry, Differences& out);

}  // namespace galley::recipe
