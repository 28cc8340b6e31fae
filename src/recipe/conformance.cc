#include "recipe/conformance.h"

#include <algorithm>
#include <array>
#include <fmt/core.h>
#include <utility>

#include "base/file.h"
#include "base/units.h"
#include "recipe/conformance_parts.h"

// The kinds of golden records and how files of them are read.
namespace galley::recipe {
namespace {

void check_encode_record(const Json& record,
                         const ConformanceTokenizers& tokenizers,
                         Differences& out) {
  check_encode(record, flag_of(record, "special"), *tokenizers.v4, out);
}

// One kind of record or vector: what it has to have, since what is not there compares equal to
// anything, and the check.
struct Format {
  std::string_view name;
  std::array<std::string_view, 4> wanted;  // empty names fill up
  void (*check)(const Json&, const ConformanceTokenizers&, RecordCheck&);
};

template <void (*check)(const Json&, Differences&)>
void plain(const Json& record, const ConformanceTokenizers& /*tokenizers*/, RecordCheck& out) {
  check(record, out.differences);
}
template <void (*check)(const Json&, const ConformanceTokenizers&, Differences&)>
void with_tokenizers(const Json& record,
                     const ConformanceTokenizers& tokenizers,
                     RecordCheck& out) {
  check(record, tokenizers, out.differences);
}

constexpr std::array<Format, 9> kRecordFormats = {{
    {"render", {"body", "prompt"}, with_tokenizers<check_render>},
    {"error", {"body", "status", "message"}, plain<check_error>},
    {"parse", {"body", "text"}, plain<check_parse>},
    {"tokens", {"body", "chunks", "events", "response"}, with_tokenizers<check_tokens>},
    {"cuts", {"body", "text", "cuts", "whole_stop"}, plain<check_cuts>},
    {"max_tokens", {"body", "prompt_tokens", "context_limit", "result"}, plain<check_max_tokens>},
    {"image", {"w", "h", "tokens"}, plain<check_image>},
    {"enc", {}, with_tokenizers<check_encode_record>},
    {"dec", {"ids", "text"}, with_tokenizers<check_decode>},
}};

constexpr std::array<Format, 8> kVectorFormats = {{
    {"render", {"request", "prompt"}, with_tokenizers<check_render_vector>},
    {"hf_formatter", {"messages", "prompt"}, check_formatter_vector},
    {"tokenize", {"text"}, with_tokenizers<check_tokenize_vector>},
    {"injection", {"user_content"}, with_tokenizers<check_injection_vector>},
    {"parse", {"chunks", "result", "finish_reason"}, plain<check_parse_vector>},
    {"protocol_events", {"chunks", "requests"}, plain<check_events_vector>},
    {"image_tokens", {"width", "height", "tokens"}, plain<check_image>},
    {"errors", {"request", "message"}, plain<check_error_vector>},
}};

void run(const Format& format,
         const Json& record,
         const ConformanceTokenizers& tokenizers,
         RecordCheck& check) {
  for (const std::string_view member : format.wanted) {
    if (!member.empty() && record.find(member) == nullptr) {
      check.differences.push_back(fmt::format("{}: missing, so there is nothing to check", member));
    }
  }
  if (check.differences.empty()) {
    format.check(record, tokenizers, check);
  }
}

std::vector<RecordCheck> check_vectors(const Json& file, const ConformanceTokenizers& tokenizers) {
  std::vector<RecordCheck> checks;
  for (const JsonMember& member : members_of(file)) {
    const auto format = std::ranges::find(kVectorFormats, member.key, &Format::name);
    const bool is_list = member.value.array() != nullptr;
    const bool is_known = format != kVectorFormats.end();
    if (is_list != is_known) {
      checks.push_back(
          {.id = member.key,
           .differences = {is_known ? "not a list of vectors" : "unknown kind of vector"},
           .not_applicable = {}});
    }
    if (!is_list || !is_known) {  // what says what the file is
      continue;
    }
    const std::span<const Json> entries = elements_of(member.value);
    for (std::size_t i = 0; i < entries.size(); ++i) {
      RecordCheck check{.id = fmt::format("{}[{}] {}", member.key, i, text_of(entries[i], "name"))};
      run(*format, entries[i], tokenizers, check);
      checks.push_back(std::move(check));
    }
  }
  return checks;
}

}  // namespace

RecordCheck check_record(const Json& record, const ConformanceTokenizers& tokenizers) {
  RecordCheck check{.id = text_of(record, "id")};
  const std::string kind = text_of(record, "k");
  const auto format = std::ranges::find(kRecordFormats, kind, &Format::name);
  if (format == kRecordFormats.end()) {
    check.differences.push_back("unknown kind of record: " + kind);
  } else {
    run(*format, record, tokenizers, check);
  }
  return check;
}

Result<std::vector<RecordCheck>> check_file(const std::string& path,
                                            const ConformanceTokenizers& tokenizers) {
  GALLEY_TRY(const std::string text, read_file(path, Bytes{kGoldenBytesMax}));
  if (!path.ends_with(".jsonl")) {
    const Result<Json> file = parse_json(text);
    if (!file || file->object() == nullptr) {
      return fail(Code::kInvalidArgument, path + ": want a JSON object of vectors" +
                                              (file ? "" : ": " + to_string(file.error())));
    }
    return check_vectors(*file, tokenizers);
  }
  std::vector<RecordCheck> checks;
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.empty()) {
      continue;
    }
    const Result<Json> record = parse_json(line);
    if (!record) {
      return fail(Code::kInvalidArgument,
                  fmt::format("{}:{}: {}", path, number, to_string(record.error())));
    }
    checks.push_back(check_record(*record, tokenizers));
  }
  return checks;
}

}  // namespace galley::recipe
