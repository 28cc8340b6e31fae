#include "apps/options.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <fmt/core.h>
#include <utility>

#include "apps/input.h"
#include "cache/sha256.h"
#include "gateway/sources/dialect.h"
#include "kernels/isa.h"
#include "recipe/names.h"

namespace galley::apps {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kDurationMin = Duration(1ms).count();
constexpr std::int64_t kDurationMax = Duration(24h).count();
constexpr std::int64_t kBlockLifeMin = Duration(1h).count();
constexpr std::int64_t kKeptMax = Duration(24h * 3650).count();
// What is kept in memory is gone with the process anyway, so it takes little.
constexpr std::size_t kMemoryResponsesBytesMax = std::size_t{64} << 20U;

// The tenant of server.key.
constexpr const char* kKeyOfSetting = "default";

// The shortest useful list. Names of clients' models map to the version whose prompts they get.
const std::array kOptions{
    ConfigOption{.key = "server.address",
                 .initial = "127.0.0.1",
                 .help = "IP address to listen on. Set keys before it is one that others reach."},
    ConfigOption{.key = "server.port",
                 .type = ConfigType::kInteger,
                 .initial = "8080",
                 .help = "Port to listen on; 0 takes any free one.",
                 .max = 65535},
    ConfigOption{.key = "server.port_file",
                 .initial = "",
                 .help = "Write the port that was taken into this file, once the server listens."},
    ConfigOption{.key = "server.keys_file",
                 .initial = "",
                 .help = "File of the API keys that may use the server, see `galley keys`; empty "
                         "and no server.key: everybody may."},
    ConfigOption{.key = "server.key",
                 .initial = "",
                 .help = "One more API key, best given as a variable; its holder has no limits.",
                 .secret = true},
    ConfigOption{.key = "server.connections_max",
                 .type = ConfigType::kInteger,
                 .initial = "1024",
                 .help = "Open connections; one more is answered 503.",
                 .min = 1,
                 .max = 1'000'000},
    ConfigOption{
        .key = "server.bodies_bytes_max",
        .type = ConfigType::kSize,
        .initial = "1GiB",
        .help = "Request bodies under way together; more are answered 503, a larger one 413.",
        .min = 1},
    ConfigOption{.key = "server.codec_threads",
                 .type = ConfigType::kInteger,
                 .initial = "2",
                 .help = "Threads that parse and tokenise requests.",
                 .min = 1,
                 .max = 256},
    ConfigOption{.key = "server.idle_timeout",
                 .type = ConfigType::kDuration,
                 .initial = "75s",
                 .help = "How long a connection may wait for its next request.",
                 .min = kDurationMin,
                 .max = kDurationMax},
    ConfigOption{.key = "server.header_timeout",
                 .type = ConfigType::kDuration,
                 .initial = "10s",
                 .help = "How long a client may take to send a request header.",
                 .min = kDurationMin,
                 .max = kDurationMax},
    ConfigOption{.key = "server.body_timeout",
                 .type = ConfigType::kDuration,
                 .initial = "2m",
                 .help = "How long a client may take to send a request body.",
                 .min = kDurationMin,
                 .max = kDurationMax},
    ConfigOption{.key = "server.write_timeout",
                 .type = ConfigType::kDuration,
                 .initial = "30s",
                 .help = "How long a client may take to receive 64 KiB.",
                 .min = kDurationMin,
                 .max = kDurationMax},
    ConfigOption{.key = "server.keep_alive_interval",
                 .type = ConfigType::kDuration,
                 .initial = "10s",
                 .help = "Silence of a stream before a comment keeps it open.",
                 .min = kDurationMin,
                 .max = kDurationMax},
    ConfigOption{.key = "server.drain_grace",
                 .type = ConfigType::kDuration,
                 .initial = "1s",
                 .help =
                     "After SIGTERM or SIGINT: how long new connections are still taken and told "
                     "503, so that a balancer looks elsewhere.",
                 .max = kDurationMax},
    ConfigOption{
        .key = "server.drain_timeout",
        .type = ConfigType::kDuration,
        .initial = "30s",
        .help =
            "After the grace: how long running requests may finish before they end with an error.",
        .max = kDurationMax},
    ConfigOption{.key = "server.otlp",
                 .initial = "",
                 .help = "Address of an OpenTelemetry collector, such as http://127.0.0.1:4318, "
                         "that gets a span of each request; empty: none does."},
    ConfigOption{.key = "server.data",
                 .initial = "",
                 .help = "Folder for what clients leave with the server; made where it is missing. "
                         "Empty: Responses are kept in memory, files and batches are not offered."},
    ConfigOption{.key = "server.responses",
                 .type = ConfigType::kBool,
                 .initial = "true",
                 .help = "Keep Responses, so that a client can name one instead of sending the "
                         "conversation again; a request may say `store: false`."},
    ConfigOption{.key = "server.responses_bytes_max",
                 .type = ConfigType::kSize,
                 .initial = "256MiB",
                 .help =
                     "Kept Responses together, at most 64MiB without server.data; more push out "
                     "those that were not used for the longest time.",
                 .min = 1,
                 .max = std::int64_t{1} << 42},
    ConfigOption{.key = "server.responses_count_max",
                 .type = ConfigType::kInteger,
                 .initial = "100000",
                 .help = "Kept Responses, likewise.",
                 .min = 1,
                 .max = 100'000'000},
    ConfigOption{.key = "server.responses_age_max",
                 .type = ConfigType::kDuration,
                 .initial = "720h",
                 .help = "How long after its last use a Response is forgotten.",
                 .min = kDurationMin,
                 .max = kKeptMax},
    ConfigOption{.key = "server.files_bytes_max",
                 .type = ConfigType::kSize,
                 .initial = "4GiB",
                 .help = "Files that clients leave for batches, and what batches answer, together; "
                         "more are refused.",
                 .min = 1,
                 .max = std::int64_t{1} << 46},
    ConfigOption{.key = "server.files_age_max",
                 .type = ConfigType::kDuration,
                 .initial = "720h",
                 .help = "How long files are kept.",
                 .min = kDurationMin,
                 .max = kKeptMax},
    ConfigOption{.key = "server.batch_concurrency",
                 .type = ConfigType::kInteger,
                 .initial = "4",
                 .help = "Answers of batches that are made at once, as many of a line as its n "
                         "asks for; they take only what other "
                         "requests leave of engine.slots.",
                 .min = 1,
                 .max = 1024},
    ConfigOption{.key = "model",
                 .initial = "",
                 .help = "Folder of a checkpoint that answers; empty: no model, it echoes."},
    ConfigOption{.key = "tokenizer",
                 .initial = "",
                 .help = "A tokenizer.json of the V4 family; empty takes the model's own, and "
                         "without a model a small built-in one."},
    ConfigOption{.key = "models",
                 .type = ConfigType::kMap,
                 .initial = "DeepSeek-V4-Pro=v4,DeepSeek-V4.1-Flash=v4.1,galley-echo=v4.1",
                 .help = "Names that clients may ask for, each with its prompt form: v4 or v4.1. "
                         "With a model the default is its folder's name alone."},
    ConfigOption{.key = "context_tokens",
                 .type = ConfigType::kInteger,
                 .initial = "1048576",
                 .help = "Longest prompt and answer together.",
                 .min = 1,
                 .max = std::int64_t{1} << 32},
    ConfigOption{.key = "engine.slots",
                 .type = ConfigType::kInteger,
                 .initial = "8",
                 .help = "Requests that the model answers at once; more wait.",
                 .min = 1,
                 .max = 1024},
    ConfigOption{.key = "engine.cache",
                 .type = ConfigType::kSize,
                 .initial = "1GiB",
                 .help = "Memory for what prompts and answers leave behind, so that nothing is "
                         "computed twice. It takes what it needs, up to this; one context of full "
                         "length always fits.",
                 .min = 0,
                 .max = std::int64_t{1} << 42},
    ConfigOption{
        .key = "engine.states",
        .type = ConfigType::kSize,
        .initial = "256MiB",
        .help = "Memory for the windows of conversations that may go on, for 180 s: their next "
                "turn then computes nothing again. Without, windows are computed again.",
        .min = 0,
        .max = std::int64_t{1} << 42},
    ConfigOption{.key = "engine.url",
                 .initial = "",
                 .help = "Address of another engine's server that makes the tokens instead of a "
                         "model of ours, such as http://127.0.0.1:8000; wants `tokenizer`, that of "
                         "its model."},
    ConfigOption{.key = "engine.kind",
                 .type = ConfigType::kChoice,
                 .initial = gateway::kDialectNames.front(),
                 .help = "Which engine engine.url is.",
                 .choices = gateway::kDialectNames},
    ConfigOption{.key = "engine.key",
                 .initial = "",
                 .help = "API key that engine.url wants, best given as a variable.",
                 .secret = true},
    ConfigOption{.key = "engine.requests_max",
                 .type = ConfigType::kInteger,
                 .initial = "256",
                 .help = "Requests under way at engine.url; one more is answered 429.",
                 .min = 1,
                 .max = 65536},
    ConfigOption{.key = "engine.silence_timeout",
                 .type = ConfigType::kDuration,
                 .initial = "10m",
                 .help = "How long engine.url may make no token before it is asked again.",
                 .min = kDurationMin,
                 .max = kDurationMax},
    ConfigOption{.key = "cache.dir",
                 .initial = "",
                 .help = "Folder for what engine.cache has no room for, and for restarts: "
                         "conversations go on without being computed again. Empty: `blocks` in "
                         "server.data, and without that nowhere."},
    ConfigOption{.key = "cache.bytes",
                 .type = ConfigType::kSize,
                 .initial = "16GiB",
                 .help = "Room on disk that it may take; what was used least recently goes first. "
                         "0: keeps nothing on disk.",
                 .min = 0,
                 .max = std::int64_t{1} << 50},
    ConfigOption{.key = "cache.agent_life",
                 .type = ConfigType::kDuration,
                 .initial = "72h",
                 .help = "How long it keeps what requests with tools leave, after its last use.",
                 .min = kBlockLifeMin,
                 .max = kKeptMax},
    ConfigOption{.key = "cache.chat_life",
                 .type = ConfigType::kDuration,
                 .initial = "168h",
                 .help = "Likewise for all other requests.",
                 .min = kBlockLifeMin,
                 .max = kKeptMax},
    ConfigOption{.key = "default_thinking",
                 .type = ConfigType::kBool,
                 .initial = "true",
                 .help = "Think when a request does not say."},
    ConfigOption{
        .key = "reject_missing_reasoning",
        .type = ConfigType::kBool,
        .initial = "false",
        .help = "Refuse a thinking request whose earlier tool calls lack their reasoning."},
    ConfigOption{.key = "compat",
                 .type = ConfigType::kChoice,
                 .initial = "galley",
                 .help = "recipe-0.2 reproduces the reference codec, its defects included.",
                 .choices = recipe::kNames<recipe::Compat>},
    ConfigOption{.key = "script",
                 .initial = "",
                 .help = "Answer from this JSONL file of recorded outputs instead of echoing."},
    ConfigOption{.key = "log.level",
                 .type = ConfigType::kChoice,
                 .initial = "info",
                 .help = "Least important lines to log.",
                 .choices = kLogLevelNames},
    ConfigOption{.key = "log.format",
                 .type = ConfigType::kChoice,
                 .initial = "text",
                 .help = "Form of log lines.",
                 .choices = kLogFormatNames},
};

}  // namespace

std::span<const ConfigOption> config_options() {
  return kOptions;
}

Result<Config> load_config(std::vector<std::string> args) {
  // Variables of our tests and scripts, which a server started by them sees too, and the kernels'.
  return Config::load(kOptions,
                      process_config_input(std::move(args), {"GALLEY_V4_TOKENIZER", "GALLEY_BIN",
                                                             "GALLEY_KEY", kernels::kIsaVariable}));
}

gateway::HttpOptions http_options(const Config& config) {
  return {.address = config.string("server.address"),
          .port = static_cast<std::uint16_t>(config.integer("server.port")),
          .connections_max = static_cast<std::size_t>(config.integer("server.connections_max")),
          .bodies_bytes_max = config.size("server.bodies_bytes_max").value(),
          .codec_threads = static_cast<std::size_t>(config.integer("server.codec_threads")),
          .idle_timeout = config.duration("server.idle_timeout"),
          .header_timeout = config.duration("server.header_timeout"),
          .body_timeout = config.duration("server.body_timeout"),
          .write_timeout = config.duration("server.write_timeout"),
          .keep_alive_interval = config.duration("server.keep_alive_interval")};
}

gateway::ResponseLimits response_limits(const Config& config) {
  const auto bytes = static_cast<std::size_t>(config.size("server.responses_bytes_max").value());
  return {.bytes_max = config.string("server.data").empty()
                           ? std::min(bytes, kMemoryResponsesBytesMax)
                           : bytes,
          .count_max = static_cast<std::size_t>(config.integer("server.responses_count_max")),
          .age_max = config.duration("server.responses_age_max")};
}

gateway::FileLimits file_limits(const Config& config) {
  return {.bytes_max = static_cast<std::size_t>(config.size("server.files_bytes_max").value()),
          .age_max = config.duration("server.files_age_max")};
}

Result<gateway::ApiKeys> api_keys(const Config& config) {
  gateway::ApiKeys keys;
  if (const std::string& path = config.string("server.keys_file"); !path.empty()) {
    GALLEY_TRY(const std::string text, read_input(path));
    auto parsed = gateway::ApiKeys::parse(text);
    if (!parsed) {
      return in_step(fmt::format("keys file '{}'", path), std::move(parsed).error());
    }
    if (parsed->empty()) {
      return fail(Code::kInvalidArgument, fmt::format("keys file '{}' has no key", path),
                  "server.keys_file");
    }
    keys = std::move(*parsed);
  }
  if (const Secret key = config.secret("server.key"); !key.empty()) {
    if (!std::ranges::all_of(key.reveal(), [](char c) { return c > ' ' && c < '\x7f'; })) {
      return fail(Code::kInvalidArgument,
                  "has white space or other bytes that no header can carry, such as a line end",
                  "server.key");
    }
    if (auto added = keys.add({.name = kKeyOfSetting, .hash = cache::sha256(key.reveal())});
        !added) {
      return in_step("server.key", std::move(added).error());
    }
  }
  return keys;
}

Result<recipe::CodecOptions> codec_options(const Config& config) {
  recipe::CodecOptions options;
  GALLEY_TRY(options.compat, compat_of(config.string("compat")));
  options.default_thinking = config.boolean("default_thinking");
  options.reject_missing_reasoning = config.boolean("reject_missing_reasoning");
  options.keeps_responses = config.boolean("server.responses");
  options.models.clear();
  for (const auto& [name, version] : config.map("models")) {
    GALLEY_TRY(options.models[name], version_of(version));
  }
  return options;
}

Result<LogOptions> log_options(const Config& config) {
  LogOptions options;
  GALLEY_TRY(options.level, parse_log_level(config.string("log.level")));
  GALLEY_TRY(options.format, parse_log_format(config.string("log.format")));
  return options;
}

Result<recipe::Compat> compat_of(std::string_view name) {
  if (const auto compat = recipe::named<recipe::Compat>(name)) {
    return *compat;
  }
  return fail(Code::kInvalidArgument, fmt::format("'{}' is not galley or recipe-0.2", name));
}

Result<recipe::ModelVersion> version_of(std::string_view name) {
  if (const auto version = recipe::named<recipe::ModelVersion>(name)) {
    return *version;
  }
  return fail(Code::kInvalidArgument, fmt::format("'{}' is not v4 or v4.1", name), "models");
}

}  // namespace galley::apps
