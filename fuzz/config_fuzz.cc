// Goal: no file, variable or flag crashes the configuration reader, and what it accepts is within
// the declared bounds and never shows a secret.
// Method: the input is cut at NUL bytes: first the file, then variables (pieces that begin with
// "GALLEY_") and flags (all others).
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/config.h"

namespace {

using galley::ConfigOption;
using galley::ConfigType;

constexpr std::array<std::string_view, 2> kLevels{"info", "debug"};
constexpr std::array kOptions{
    ConfigOption{.key = "server.host", .initial = "localhost"},
    ConfigOption{.key = "server.port", .type = ConfigType::kInteger, .initial = "1", .max = 65535},
    ConfigOption{.key = "server.api_keys", .type = ConfigType::kList, .secret = true},
    ConfigOption{
        .key = "log.level", .type = ConfigType::kChoice, .initial = "info", .choices = kLevels},
    ConfigOption{.key = "log.colour", .type = ConfigType::kBool, .initial = "false"},
    ConfigOption{
        .key = "limits.wait", .type = ConfigType::kDuration, .initial = "1s", .max = 1'000'000'000},
    ConfigOption{.key = "limits.body", .type = ConfigType::kSize, .initial = "1B", .max = 4096},
    ConfigOption{.key = "models", .type = ConfigType::kMap},
};

void check(const galley::Config& config) {
  const std::int64_t port = config.integer("server.port");
  GALLEY_ASSERT(port >= 0 && port <= 65535);
  GALLEY_ASSERT(config.duration("limits.wait") <= std::chrono::seconds(1));
  GALLEY_ASSERT(config.size("limits.body") <= galley::Bytes(4096));
  const std::string& level = config.string("log.level");
  GALLEY_ASSERT(level == kLevels[0] || level == kLevels[1]);
  for (const auto& [name, value] : config.map("models")) {
    GALLEY_ASSERT(!name.empty() && !value.empty());
  }
  std::size_t lines = 0;
  for (const char c : config.table()) {
    lines += c == '\n' ? 1 : 0;
    GALLEY_ASSERT(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  }
  GALLEY_ASSERT(lines == kOptions.size() + 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto next_piece = [&rest] {
    const std::string_view piece = rest.substr(0, rest.find('\0'));
    rest.remove_prefix(std::min(piece.size() + 1, rest.size()));
    return std::string(piece);
  };
  galley::ConfigInput input;
  const std::string file = next_piece();
  if (file.size() > galley::kConfigFileBytesMax.value()) {
    return -1;  // the real reader refuses it before parsing
  }
  input.args.emplace_back("--config=fuzz.toml");
  input.read_file = [&file](const std::string&) -> galley::Result<std::string> { return file; };
  while (!rest.empty()) {
    std::string piece = next_piece();
    (piece.starts_with("GALLEY_") ? input.environment : input.args).push_back(std::move(piece));
  }
  if (const auto config = galley::Config::load(kOptions, input)) {
    check(*config);
  } else {
    GALLEY_ASSERT(!config.error().what.empty());
  }
  return 0;
}
