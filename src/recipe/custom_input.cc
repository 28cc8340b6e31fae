#include "recipe/custom_input.h"

#include <charconv>

namespace galley::recipe {
namespace {

constexpr std::string_view kStart = "{\"input\":\"";

// White space may stand before any byte of the start but inside the quoted key.
bool space_allowed(std::size_t matched) {
  return matched < 2 || matched >= 8;
}

void append_utf8(std::uint32_t code, std::string& out) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xc0 | (code >> 6U)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3fU)));
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xe0 | (code >> 12U)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6U) & 0x3fU)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3fU)));
  } else {
    out.push_back(static_cast<char>(0xf0 | (code >> 18U)));
    out.push_back(static_cast<char>(0x80 | ((code >> 12U) & 0x3fU)));
    out.push_back(static_cast<char>(0x80 | ((code >> 6U) & 0x3fU)));
    out.push_back(static_cast<char>(0x80 | (code & 0x3fU)));
  }
}

// Value of `\uXXXX`; -1 when the digits are none.
std::int32_t hex_escape(std::string_view escape) {
  std::uint32_t value = 0;
  const auto result = std::from_chars(escape.data() + 2, escape.data() + 6, value, 16);
  return result.ptr == escape.data() + 6 ? static_cast<std::int32_t>(value) : -1;
}

}  // namespace

void CustomInput::feed(std::string_view arguments, std::string& out) {
  for (const char byte : arguments) {
    switch (state_) {
      case State::kStart:
        start(byte, out);
        break;
      case State::kString:
        string(byte, out);
        break;
      case State::kRaw:
        out.push_back(byte);
        break;
      case State::kDone:
        return;
    }
  }
}

void CustomInput::finish(std::string& out) {
  out.append(pending_);
  pending_.clear();
  state_ = State::kDone;
}

void CustomInput::start(char byte, std::string& out) {
  pending_.push_back(byte);
  if (byte == kStart[matched_]) {
    if (++matched_ == kStart.size()) {
      pending_.clear();
      state_ = State::kString;
    }
  } else if (!space_allowed(matched_) ||
             std::string_view(" \t\n\r\f").find(byte) == std::string_view::npos) {
    out.append(pending_);
    pending_.clear();
    state_ = State::kRaw;
  }
}

void CustomInput::string(char byte, std::string& out) {
  if (!pending_.empty() || byte == '\\') {
    escape(byte, out);
  } else if (byte == '"') {
    state_ = State::kDone;
  } else {
    out.push_back(byte);
  }
}

void CustomInput::escape(char byte, std::string& out) {
  pending_.push_back(byte);
  const auto give = [&](std::uint32_t code) {
    append_utf8(code, out);
    pending_.clear();
  };
  if (pending_.size() == 2 && byte != 'u') {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
    if (const auto at = kNames.find(byte); at != std::string_view::npos) {
      give(static_cast<unsigned char>(kValues[at]));
      return;
    }
  } else if (pending_.size() < 6 || (pending_.size() == 7 && byte == '\\') ||
             (pending_.size() == 8 && byte == 'u') ||
             (pending_.size() > 8 && pending_.size() < 12)) {
    return;
  } else if (pending_.size() == 6) {
    const std::int32_t code = hex_escape(pending_);
    if (code >= 0xd800 && code < 0xdc00) {
      return;  // the second half of the pair must follow
    }
    if (code >= 0 && !(code >= 0xdc00 && code < 0xe000)) {
      give(static_cast<std::uint32_t>(code));
      return;
    }
  } else if (pending_.size() == 12) {
    const std::int32_t high = hex_escape(pending_);
    const std::int32_t low = hex_escape(std::string_view(pending_).substr(6));
    if (low >= 0xdc00 && low < 0xe000) {
      give(0x10000U + (static_cast<std::uint32_t>(high - 0xd800) << 10U) +
           static_cast<std::uint32_t>(low - 0xdc00));
      return;
    }
  }
  out.append(pending_);
  pending_.clear();
  state_ = State::kRaw;
}

}  // namespace galley::recipe
