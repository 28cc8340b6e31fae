// The C++ side of bench/recipe: reads the loads run.py wrote, then for each line "NAME ITERATIONS"
// on standard input runs that load once and prints one JSON line with the seconds it took. Staying
// alive between lines lets run.py alternate it with its peers without loading the vocabulary anew.
#include <chrono>
#include <ctime>
#include <fmt/core.h>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ids.h"
#include "base/result.h"
#include "recipe/control.h"
#include "recipe/json.h"
#include "recipe/output_parser.h"
#include "recipe/prompt.h"
#include "recipe/prompt_encoder.h"
#include "recipe/reply.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

namespace galley::recipe {
namespace {

// Process CPU time beside wall time: the machine may be shared.
class Stopwatch {
 public:
  void start() {
    cpu_ = cpu_now();
    wall_ = std::chrono::steady_clock::now();
  }
  void stop() {
    cpu_s_ += cpu_now() - cpu_;
    wall_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - wall_).count();
  }
  [[nodiscard]] double cpu_s() const { return cpu_s_; }
  [[nodiscard]] double wall_s() const { return wall_s_; }

 private:
  static double cpu_now() {
    timespec time{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  double cpu_{};
  std::chrono::steady_clock::time_point wall_;
  double cpu_s_{};
  double wall_s_{};
};

class FixedIds final : public IdSource {
 public:
  std::string next_id() override { return "abcdefghijABCDEFGHIJ"; }
};

// A broken load is a bug of the benchmark: stop with the reason.
template <class T>
T must(Result<T> result) {
  if (!result) {
    fmt::print(stderr, "{}\n", to_string(result.error()));
    std::exit(1);
  }
  return std::move(result).value();
}

std::string text_of(const Json& loads, std::string_view key) {
  const Json* const value = loads.find(key);
  GALLEY_ASSERT(value != nullptr);
  GALLEY_ASSERT(value->string() != nullptr);
  return *value->string();
}

class Bench {
 public:
  Bench(std::shared_ptr<const Tokenizer> tokenizer, const Json& loads)
      : tokenizer_(std::move(tokenizer)),
        controls_(must(ControlIds::find(*tokenizer_, ModelVersion::kV4))),
        body_(text_of(loads, "body")),
        request_(must(parse_chat_request(body_, {}))),
        output_(text_of(loads, "output")),
        conversation_(must(parse_chat_request(text_of(loads, "conversation"), {}))),
        grown_(must(parse_chat_request(text_of(loads, "grown"), {}))) {
    for (const Json& document : *loads.find("documents")->array()) {
      documents_.push_back(*document.string());
    }
    tokenizer_->encode_with_added(output_, output_ids_);
  }

  // Returns a number that must not depend on the speed: tokens or bytes of one iteration.
  std::size_t run(std::string_view name, int iterations, Stopwatch& watch) {
    std::size_t made = 0;
    for (int i = 0; i < iterations; ++i) {
      if (name == "tokenise") {
        made = tokenise(watch);
      } else if (name == "request") {
        made = request(watch);
      } else if (name == "stream") {
        made = stream(watch);
      } else if (name == "whole_text") {
        made = whole_text(watch);
      } else if (name == "conversation") {
        made = conversation(watch);
      } else if (name == "grown") {
        made = grown(watch);
      } else {
        fmt::print(stderr, "no such load: {}\n", name);
        std::exit(1);
      }
    }
    return made;
  }

 private:
  std::size_t tokenise(Stopwatch& watch) {
    std::size_t count = 0;
    std::vector<TokenId> ids;
    watch.start();
    for (const std::string& document : documents_) {
      ids.clear();
      tokenizer_->encode(document, ids);
      count += ids.size();
    }
    watch.stop();
    return count;
  }

  // Body to ids with nothing remembered from the request before.
  std::size_t request(Stopwatch& watch) {
    watch.start();
    const Request request = must(parse_chat_request(body_, {}));
    PromptEncoder encoder(tokenizer_, controls_);
    const std::size_t count = encoder.encode(render(request.conversation, request.version)).size();
    watch.stop();
    return count;
  }

  std::size_t stream(Stopwatch& watch) {
    std::size_t count = 0;
    std::string bytes;
    watch.start();
    const auto encoder = StreamEncoder::create(request_, info(), bytes);
    const auto parser = OutputParser::create(request_, tokenizer_, *encoder);
    for (const TokenId id : output_ids_) {
      must_ok(parser->feed_tokens({&id, 1}));
      count += bytes.size();
      bytes.clear();
    }
    parser->finish(SourceFinish::kStop);
    watch.stop();
    return count + bytes.size();
  }

  std::size_t whole_text(Stopwatch& watch) {
    std::string bytes;
    watch.start();
    const auto encoder = StreamEncoder::create(request_, info(), bytes);
    const auto parser = OutputParser::create(request_, nullptr, *encoder);
    parser->feed_text(output_, static_cast<std::int64_t>(output_ids_.size()));
    parser->finish(SourceFinish::kStop);
    watch.stop();
    return bytes.size();
  }

  std::size_t conversation(Stopwatch& watch) {
    watch.start();
    PromptEncoder encoder(tokenizer_, controls_);
    const std::size_t count =
        encoder.encode(render(conversation_.conversation, conversation_.version)).size();
    watch.stop();
    return count;
  }

  // The same conversation was encoded before; one turn was added.
  std::size_t grown(Stopwatch& watch) {
    PromptEncoder encoder(tokenizer_, controls_);
    (void)encoder.encode(render(conversation_.conversation, conversation_.version));
    watch.start();
    const std::size_t count = encoder.encode(render(grown_.conversation, grown_.version)).size();
    watch.stop();
    return count;
  }

  ReplyInfo info() { return {.id = "r", .created_s = 1, .call_ids = &ids_}; }
  static void must_ok(const Result<void>& result) { GALLEY_ASSERT(result.has_value()); }

  std::shared_ptr<const Tokenizer> tokenizer_;  // shared with parsers and encoders
  ControlIds controls_;
  std::string body_;
  Request request_;
  std::string output_;
  std::vector<TokenId> output_ids_;
  Request conversation_;
  Request grown_;
  std::vector<std::string> documents_;
  FixedIds ids_;
};

int main_with(const char* tokenizer_path, const char* loads_path) {
  std::ifstream file(loads_path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  Bench bench(must(Tokenizer::from_file(tokenizer_path)), must(parse_json(text)));
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string name;
    int iterations = 0;
    words >> name >> iterations;
    Stopwatch watch;
    const std::size_t made = bench.run(name, iterations, watch);
    fmt::print("{{\"load\":\"{}\",\"cpu_s\":{},\"wall_s\":{},\"made\":{}}}\n", name,
               watch.cpu_s() / iterations, watch.wall_s() / iterations, made);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace galley::recipe

int main(int argc, char** argv) {
  if (argc != 3) {
    fmt::print(stderr, "usage: {} tokenizer.json loads.json\n", argv[0]);
    return 2;
  }
  return galley::recipe::main_with(argv[1], argv[2]);
}
