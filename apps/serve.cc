#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <pthread.h>
#include <string>
#include <utility>

#include "apps/block_disk.h"
#include "apps/commands.h"
#include "apps/doctor_machine.h"
#include "apps/input.h"
#include "apps/introduction.h"
#include "apps/kept_data.h"
#include "apps/memory_fit.h"
#include "apps/model_source.h"
#include "apps/options.h"
#include "apps/tokenizer_choice.h"
#include "apps/web_pages.h"
#include "base/entropy.h"
#include "base/loop_thread.h"
#include "base/real_clock.h"
#include "gateway/codec.h"
#include "gateway/http_client.h"
#include "gateway/http_server.h"
#include "gateway/routes.h"
#include "gateway/sources/dialect.h"
#include "gateway/sources/echo.h"
#include "gateway/sources/foreign.h"
#include "gateway/sources/scripted.h"
#include "gateway/span_exporter.h"
#include "kernels/isa.h"
#include "recipe/random_ids.h"

namespace galley::apps {
namespace {

// What answers, and the vocabulary it speaks.
struct Answerer {
  std::shared_ptr<const recipe::Tokenizer> tokenizer;  // shared with the codec
  std::string tokenizer_name;
  std::optional<LoadedModel> model;
  std::unique_ptr<engine::EngineSource> engine;  // over the model
  std::unique_ptr<recipe::TokenSource> other;    // without one
  std::string memory;                            // of a model: what fits, for people

  [[nodiscard]] recipe::TokenSource& source() const { return engine ? *engine : *other; }
};

std::size_t weights_bytes(const std::string& directory) {
  std::size_t bytes = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(directory, error)) {
    if (file.path().extension() == ".safetensors") {
      bytes += file.file_size(error);
    }
  }
  return bytes;
}

// What of the work fits into this machine. Error: not one request does.
Result<std::string> check_memory(const Config& config, const LoadedModel& model) {
  const model::ModelPlan& plan = model.network->plan();
  const MemoryDemand demand{
      .weights_bytes = weights_bytes(config.string("model")),
      .block_bytes = plan.cache.block_stride,
      .slot_bytes = plan.cache.slot_bytes,
      .slots = static_cast<std::size_t>(config.integer("engine.slots")),
      .context_tokens = std::min(config.integer("context_tokens"), plan.config.positions_max),
      .cache_bytes = config.size("engine.cache").value(),
      .states_bytes = config.size("engine.states").value()};
  GALLEY_TRY(const MemoryFit fit,
             memory_fit(demand, static_cast<std::size_t>(read_memory().available_bytes)));
  return describe(fit, demand);
}

// What asks the engine at `engine.url`.
Result<std::unique_ptr<recipe::TokenSource>> make_foreign(
    const Config& config,
    const std::shared_ptr<const recipe::Tokenizer>& tokenizer,
    const Clock& clock,
    Metrics& metrics,
    Log& log) {
  return gateway::ForeignSource::create(
      gateway::make_dialect(config.string("engine.kind"), tokenizer), tokenizer, clock, metrics,
      log,
      {.url = config.string("engine.url"),
       .key = config.secret("engine.key"),
       .requests_max = static_cast<std::size_t>(config.integer("engine.requests_max")),
       .silence_max = config.duration("engine.silence_timeout")});
}

// At most one of them answers.
Result<void> check_answerers(const Config& config) {
  std::string first;
  for (const char* const key : {"model", "engine.url", "script"}) {
    if (config.string(key).empty()) {
      continue;
    }
    if (!first.empty()) {
      return fail(Code::kInvalidArgument, fmt::format("and {} cannot both answer", first), key);
    }
    first = key;
  }
  if (first == "engine.url" && config.string("tokenizer").empty()) {
    return fail(Code::kInvalidArgument,
                "is missing: an engine at engine.url wants the tokenizer.json of its model",
                "tokenizer");
  }
  return {};
}

// `loop` delivers what echo and scripted answer; `blocks`, null or longer-lived, are for a model.
Result<Answerer> make_answerer(const Config& config,
                               const Clock& clock,
                               Metrics& metrics,
                               Log& log,
                               BlockDisk* blocks,
                               Loop& loop) {
  const std::string& model = config.string("model");
  const std::string& script = config.string("script");
  const std::string& tokenizer = config.string("tokenizer");
  GALLEY_CHECK_OK(check_answerers(config));
  Answerer answerer;
  if (!model.empty()) {
    GALLEY_TRY(answerer.model, load_model(model, tokenizer));
    GALLEY_TRY(answerer.memory, check_memory(config, *answerer.model));
    GALLEY_TRY(answerer.engine,
               make_engine(*answerer.model,
                           {.context_tokens = config.integer("context_tokens"),
                            .slots = static_cast<std::size_t>(config.integer("engine.slots")),
                            .cache = config.size("engine.cache"),
                            .states = config.size("engine.states"),
                            .store = {.store = blocks != nullptr ? &blocks->store() : nullptr,
                                      .agent_class = BlockDisk::kAgentClass,
                                      .chat_class = BlockDisk::kChatClass},
                            .metrics = &metrics},
                           clock));
    answerer.tokenizer = answerer.model->tokenizer;
    answerer.tokenizer_name = answerer.model->tokenizer_path;
    return answerer;
  }
  GALLEY_TRY(answerer.tokenizer, choose_tokenizer(tokenizer));
  answerer.tokenizer_name = tokenizer.empty() ? "built-in" : tokenizer;
  if (!config.string("engine.url").empty()) {
    GALLEY_TRY(answerer.other, make_foreign(config, answerer.tokenizer, clock, metrics, log));
    return answerer;
  }
  if (script.empty()) {
    answerer.other = std::make_unique<gateway::EchoSource>(answerer.tokenizer, loop);
    return answerer;
  }
  GALLEY_TRY(const std::string jsonl, read_input(script));
  GALLEY_TRY(answerer.other, gateway::ScriptedSource::from_jsonl(jsonl, *answerer.tokenizer, loop));
  return answerer;
}

Result<std::unique_ptr<gateway::Codec>> make_codec(const Config& config, const Answerer& answerer) {
  GALLEY_TRY(recipe::CodecOptions options, codec_options(config));
  std::int64_t context = config.integer("context_tokens");
  if (answerer.model) {
    context = answerer.engine->context_tokens();
    if (config.source("models") == "default") {
      options.models.clear();
    }
    options.models[answerer.model->name] = answerer.model->version;
  }
  return gateway::Codec::create(answerer.tokenizer, std::move(options), context);
}

void log_packed(Log& log, const PackedMatrices& packed) {
  if (!packed.refused.empty()) {
    log.warn("pack file not used", {{"path", packed.file}, {"reason", packed.refused}});
  }
  switch (packed.form) {
    case model::PackedForm::kFile:
      log.info("matrices come from a pack file", {{"path", packed.file}, {"bytes", packed.bytes}});
      return;
    case model::PackedForm::kMemory:
      log.info("matrices are packed in memory", {{"bytes", packed.bytes}});
      return;
    case model::PackedForm::kNone:
      break;
  }
  if (packed.hint.empty()) {
    log.info("matrices have no packed form");
  } else {
    log.warn("matrices are packed on the way, which is slow", {{"faster_after", packed.hint}});
  }
}

// The name to ask for where the reader has no wish of their own.
const std::string& first_model(const gateway::Codec& codec, const Answerer& answerer) {
  static const std::string kEcho = "galley-echo";
  const auto& models = codec.options().models;
  return answerer.model           ? answerer.model->name
         : models.contains(kEcho) ? kEcho
                                  : models.begin()->first;
}

// For the page at /.
std::string introduce(const Config& config,
                      const gateway::Codec& codec,
                      const Answerer& answerer,
                      Log& log) {
  std::optional<Introduction> introduction;
  if (answerer.model) {
    auto read = read_introduction(config.string("model"));
    if (read) {
      introduction = std::move(*read);
    } else {
      log.warn("introduction.json not used", {{"reason", to_string(read.error())}});
    }
  }
  return page_introduction(first_model(codec, answerer), introduction);
}

bool is_loopback(std::string_view address) {
  return address.starts_with("127.") || address == "::1";
}

Result<void> write_port(const std::string& path, std::uint16_t port) {
  // Under another name first: whoever waits for the file never reads half of it.
  const std::string part = path + ".part";
  std::ofstream file(part);
  file << port << '\n';
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0) {
    std::remove(part.c_str());
    return fail(Code::kUnavailable, fmt::format("cannot write '{}'", path), "server.port_file");
  }
  return {};
}

void print_start(const Config& config,
                 const gateway::Codec& codec,
                 const Answerer& answerer,
                 bool wants_key,
                 std::uint16_t port) {
  const std::string& address = config.string("server.address");
  const bool v6 = address.find(':') != std::string::npos;
  const std::string url =
      fmt::format("http://{}:{}", v6 ? fmt::format("[{}]", address) : address, port);
  const auto& models = codec.options().models;
  std::string names;
  for (const auto& [name, version] : models) {
    names.append(names.empty() ? "" : ", ").append(name);
  }
  fmt::print("Galley " GALLEY_VERSION
             " listens on {}\n"
             "  answers    {}\n"
             "  models     {}\n"
             "  tokenizer  {}, {} ids\n"
             "{}"
             "Try it: open {}/ in a browser, or\n"
             "  curl {}/v1/chat/completions -H 'content-type: application/json' {}\\\n"
             "    -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": "
             "\"Hello!\"}}], \"max_tokens\": 100}}'\n"
             "Ctrl-C stops it once answers under way have ended, a second one at once.\n",
             url, answerer.source().description(), names, answerer.tokenizer_name,
             codec.tokenizer()->vocabulary_size(),
             answerer.memory.empty() ? "" : fmt::format("  context    {}\n", answerer.memory), url,
             url, wants_key ? "-H 'authorization: Bearer KEY' " : "", first_model(codec, answerer));
  std::fflush(stdout);
}

std::function<void(gateway::Span)> span_taker(gateway::SpanExporter* spans) {
  if (spans == nullptr) {
    return nullptr;
  }
  return [spans](gateway::Span span) { spans->add(std::move(span)); };
}

Result<void> serve(const Config& config) {
  // Before any thread exists, so that all inherit it: the signals that end the server are waited
  // for below, and a second one then ends it at once.
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGINT);
  sigaddset(&ending, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ending, nullptr);
  std::signal(SIGPIPE, SIG_IGN);

  const RealClock clock;
  GALLEY_TRY(LogOptions log_config, log_options(config));
  Log log(clock, std::move(log_config));
  GALLEY_TRY(gateway::ApiKeys keys, api_keys(config));
  if (const std::string& otlp = config.string("server.otlp"); !otlp.empty()) {
    GALLEY_CHECK_OK(gateway::check_server_url(otlp, "server.otlp"));
  }
  const bool wants_key = !keys.empty();
  if (!wants_key && !is_loopback(config.string("server.address"))) {
    log.warn("everybody who reaches this address may use the server: no keys are set",
             {{"address", config.string("server.address")}});
  }
  Metrics metrics;
  LoopThread loop;
  std::unique_ptr<BlockDisk> blocks;
  if (!config.string("model").empty()) {
    GALLEY_TRY(blocks, BlockDisk::open(config, clock, metrics, log));
  }
  GALLEY_TRY(const Answerer answerer,
             make_answerer(config, clock, metrics, log, blocks.get(), loop.loop()));
  GALLEY_TRY(const auto codec, make_codec(config, answerer));
  if (answerer.model) {
    log.info("model loaded",
             {{"model", answerer.model->name}, {"isa", kernels::isa_name(answerer.model->isa)}});
    log.info("memory checked", {{"context", answerer.memory}});
    log_packed(log, answerer.model->packed);
  }
  const std::string introduction = introduce(config, *codec, answerer, log);
  recipe::RandomIds ids(entropy_seed());
  std::atomic<std::size_t> interactive = 0;
  GALLEY_TRY(const auto kept, KeptData::open(config, clock, metrics, log));
  GALLEY_CHECK_OK(kept->begin_batches(*codec, answerer.source(), ids, interactive));
  std::unique_ptr<gateway::SpanExporter> spans;
  if (const std::string& otlp = config.string("server.otlp"); !otlp.empty()) {
    spans = std::make_unique<gateway::SpanExporter>(otlp, entropy_seed(), clock, metrics, log);
  }
  gateway::Routes routes({.codec = *codec,
                          .source = answerer.source(),
                          .clock = clock,
                          .ids = ids,
                          .metrics = gateway::ReplyMetrics(metrics),
                          .responses = kept->responses(),
                          .under_way = &interactive},
                         metrics, log,
                         {.pages = web_pages(introduction),
                          .description = api_description(),
                          .keys = std::move(keys),
                          .files = kept->files(),
                          .on_span = span_taker(spans.get())});
  GALLEY_TRY(const auto server,
             gateway::HttpServer::start(http_options(config), routes, clock, ids));
  // Before the server is gone, whichever way this ends: tasks of the disk answer through it.
  struct Closing {
    KeptData& data;
    ~Closing() { data.close(); }
  } const closing{*kept};
  if (const std::string& path = config.string("server.port_file"); !path.empty()) {
    GALLEY_CHECK_OK(write_port(path, server->port()));
  }
  print_start(config, *codec, answerer, wants_key, server->port());

  int signal = 0;
  sigwait(&ending, &signal);
  log.info("draining", {{"connections", server->connection_count()}});
  routes.set_draining();
  server->close_after_answers();
  const Duration grace = config.duration("server.drain_grace");
  // A second signal ends the process at once: in the grace it is taken here, after it by default.
  const timespec wait = {.tv_sec = grace / std::chrono::seconds(1),
                         .tv_nsec = grace % std::chrono::seconds(1) / std::chrono::nanoseconds(1)};
  const int second = sigtimedwait(&ending, nullptr, &wait);
  pthread_sigmask(SIG_UNBLOCK, &ending, nullptr);
  if (second > 0) {
    std::signal(second, SIG_DFL);  // started with & from a script, it is ignored
    std::raise(second);
  }
  kept->stop_batches();
  const bool drained = server->drain(config.duration("server.drain_timeout"));
  log.info("stopped", {{"all_requests_finished", drained}});
  return {};
}

}  // namespace

void add_serve(CLI::App& galley, int& exit_code) {
  CLI::App* command = galley.add_subcommand(
      "serve", "Serves the OpenAI and Anthropic APIs and a web page until SIGTERM or SIGINT.");
  command->allow_extras();
  command->footer(config_help(config_options()));
  command->callback([command, &exit_code] {
    const auto config = load_config(command->remaining());
    if (!config) {
      report(config.error());
      exit_code = kExitUsage;
      return;
    }
    if (const auto done = serve(*config); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
