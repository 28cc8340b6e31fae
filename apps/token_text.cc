#include "apps/token_text.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fmt/core.h>
#include <unistd.h>

#include "base/quote.h"
#include "recipe/json.h"
#include "recipe/text_decoder.h"

namespace galley::apps {
namespace {

constexpr std::size_t kWordBytesShown = 40;  // of what should have been an id

// Half characters would make a terminal show rubbish.
std::string shown(std::string_view bytes) {
  recipe::TextDecoder decoder;
  std::string text;
  decoder.feed(bytes, text);
  if (!decoder.pending() && text == bytes) {
    std::string out;
    recipe::append_json_string(text, out);
    return out;
  }
  std::string out;
  for (const char byte : bytes) {
    out += fmt::format("<0x{:02X}>", static_cast<unsigned char>(byte));
  }
  return out;
}

}  // namespace

bool on_terminal() {
  return isatty(STDOUT_FILENO) == 1;
}

bool use_colour() {
  const char* no_colour = std::getenv("NO_COLOR");  // no-color.org
  return on_terminal() && (no_colour == nullptr || *no_colour == '\0');
}

std::string control_text(std::string_view spelling, bool colour) {
  return colour ? fmt::format("\x1b[7m{}\x1b[0m", spelling) : fmt::format("⟦{}⟧", spelling);
}

std::string prompt_text(const recipe::Prompt& prompt, bool colour) {
  const std::string_view text = prompt.text;
  std::string out;
  std::size_t at = 0;
  for (const recipe::ControlSpan& span : prompt.controls) {
    out += text.substr(at, span.begin - at);
    out += control_text(text.substr(span.begin, span.end - span.begin), colour);
    at = span.end;
  }
  return out.append(text.substr(at));
}

std::string token_lines(std::span<const TokenId> ids,
                        const recipe::Tokenizer& tokenizer,
                        bool colour) {
  std::string out;
  for (const TokenId id : ids) {
    const std::string_view bytes = tokenizer.bytes(id);
    out += fmt::format("{:>6}  {}\n", id,
                       tokenizer.is_added(id) ? control_text(bytes, colour) : shown(bytes));
  }
  return out;
}

std::string ids_json(std::span<const TokenId> ids) {
  std::string out = "[";
  for (const TokenId id : ids) {
    out += fmt::format("{}{}", out.size() > 1 ? "," : "", id);
  }
  return out += "]";
}

std::string id_lines(std::span<const TokenId> ids) {
  std::string out;
  for (const TokenId id : ids) {
    out += fmt::format("{}\n", id);
  }
  return out;
}

Result<std::vector<TokenId>> parse_ids(std::string_view text, const recipe::Tokenizer& tokenizer) {
  constexpr std::string_view kBetween = " \t\r\n,";
  const auto drop = [&text](std::string_view bytes) {
    text.remove_prefix(std::min(text.find_first_not_of(bytes), text.size()));
  };
  drop(kBetween);
  const bool is_array = text.starts_with('[');
  text.remove_prefix(is_array ? 1 : 0);
  std::vector<TokenId> ids;
  for (drop(kBetween); !text.empty() && !(is_array && text.front() == ']'); drop(kBetween)) {
    const std::string_view word = text.substr(0, text.find_first_of(" \t\r\n,]"));
    TokenId id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc{} || end != word.data() + word.size() ||
        id >= tokenizer.vocabulary_size()) {
      return fail(Code::kInvalidArgument,
                  fmt::format("{} is no token id: want numbers below {}, with spaces, line ends or "
                              "commas between them, or a JSON array",
                              quoted(text.substr(0, std::max<std::size_t>(word.size(), 1)),
                                     kWordBytesShown),
                              tokenizer.vocabulary_size()));
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
  if (is_array) {
    if (text.empty()) {
      return fail(Code::kInvalidArgument, "the array of token ids has no end");
    }
    text.remove_prefix(1);
    drop(kBetween);
    if (!text.empty()) {
      return fail(Code::kInvalidArgument,
                  fmt::format("{} follows the array of token ids", quoted(text, kWordBytesShown)));
    }
  }
  return ids;
}

}  // namespace galley::apps
