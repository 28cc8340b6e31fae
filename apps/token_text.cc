#include "apps/token_text.h"

#include <charconv>
#include <cstdlib>
#include <fmt/core.h>
#include <unistd.h>

#include "recipe/json.h"
#include "recipe/text_decoder.h"

namespace galley::apps {
namespace {

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

bool use_colour() {
  const char* no_colour = std::getenv("NO_COLOR");  // no-color.org
  return isatty(STDOUT_FILENO) == 1 && (no_colour == nullptr || *no_colour == '\0');
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

Result<std::vector<TokenId>> parse_ids(std::string_view text, const recipe::Tokenizer& tokenizer) {
  std::vector<TokenId> ids;
  while (true) {
    const std::size_t begin = text.find_first_of("0123456789");
    if (begin == std::string_view::npos) {
      return ids;
    }
    text.remove_prefix(begin);
    TokenId id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc{} || id >= tokenizer.vocabulary_size()) {
      return fail(Code::kInvalidArgument,
                  fmt::format("'{}' is no id of the vocabulary",
                              text.substr(0, text.find_first_not_of("0123456789"))));
    }
    ids.push_back(id);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
}

}  // namespace galley::apps
