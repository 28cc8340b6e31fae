#include <chrono>
#include <csignal>
#include <cstdio>
#include <fmt/core.h>
#include <fstream>
#include <memory>
#include <pthread.h>
#include <string>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/options.h"
#include "apps/tokenizer_choice.h"
#include "base/entropy.h"
#include "base/loop_thread.h"
#include "base/real_clock.h"
#include "gateway/codec.h"
#include "gateway/http_server.h"
#include "gateway/routes.h"
#include "gateway/sources/echo.h"
#include "gateway/sources/scripted.h"
#include "recipe/random_ids.h"

namespace galley::apps {
namespace {

Result<std::unique_ptr<recipe::TokenSource>> make_source(
    const Config& config, std::shared_ptr<const recipe::Tokenizer> tokenizer, Loop& loop) {
  const std::string& script = config.string("script");
  if (script.empty()) {
    return std::make_unique<gateway::EchoSource>(std::move(tokenizer), loop);
  }
  GALLEY_TRY(const std::string jsonl, read_input(script));
  return gateway::ScriptedSource::from_jsonl(jsonl, *tokenizer, loop);
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
                 const recipe::TokenSource& source,
                 std::uint16_t port) {
  const std::string& address = config.string("server.address");
  const bool v6 = address.find(':') != std::string::npos;
  const std::string url =
      fmt::format("http://{}:{}", v6 ? fmt::format("[{}]", address) : address, port);
  const std::string& tokenizer = config.string("tokenizer");
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
             "Try it:\n"
             "  curl {}/v1/chat/completions -H 'content-type: application/json' \\\n"
             "    -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": "
             "\"Hello!\"}}]}}'\n"
             "Ctrl-C stops it.\n",
             url, source.description(), names, tokenizer.empty() ? "built-in" : tokenizer,
             codec.tokenizer()->vocabulary_size(), url,
             models.contains("galley-echo") ? "galley-echo" : models.begin()->first);
  std::fflush(stdout);
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
  Metrics metrics;
  GALLEY_TRY(const auto tokenizer, choose_tokenizer(config.string("tokenizer")));
  GALLEY_TRY(recipe::CodecOptions codec_config, codec_options(config));
  GALLEY_TRY(const auto codec, gateway::Codec::create(tokenizer, std::move(codec_config),
                                                      config.integer("context_tokens")));
  LoopThread sources;  // delivers what echo and scripted answer
  GALLEY_TRY(const auto source, make_source(config, tokenizer, sources.loop()));
  recipe::RandomIds ids(entropy_seed());
  gateway::Routes routes({.codec = *codec,
                          .source = *source,
                          .clock = clock,
                          .ids = ids,
                          .metrics = gateway::ReplyMetrics(metrics)},
                         metrics, log);
  GALLEY_TRY(const auto server,
             gateway::HttpServer::start(http_options(config), routes, clock, ids));
  if (const std::string& path = config.string("server.port_file"); !path.empty()) {
    GALLEY_CHECK_OK(write_port(path, server->port()));
  }
  print_start(config, *codec, *source, server->port());

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
    std::raise(second);
  }
  const bool drained = server->drain(config.duration("server.drain_timeout"));
  log.info("stopped", {{"all_requests_finished", drained}});
  return {};
}

}  // namespace

void add_serve(CLI::App& galley, int& exit_code) {
  CLI::App* command = galley.add_subcommand(
      "serve", "Serves the OpenAI Chat Completions API over HTTP until SIGTERM or SIGINT.");
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
