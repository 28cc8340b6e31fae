#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/secret.h"
#include "base/units.h"
#include "gateway/sources/dialect.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::gateway {

struct ForeignOptions {
  std::string url;  // of the engine's server, without a path: "http://127.0.0.1:8000"
  Secret key;       // empty: none is sent
  std::size_t requests_max = 256;  // under way at once; more are refused
  // Without a token, or a sign that the prompt goes on; longer, and the attempt has failed.
  Duration silence_max = std::chrono::minutes(10);
  // How long a request that was under way waits for an engine that has gone: a restart.
  Duration gone_max = std::chrono::minutes(1);
};

// An engine of another project behind its HTTP server: each generation is one streamed request in
// its dialect. Where the engine fails, the generation is asked for again behind what was delivered
// (sources/resume.h); cancelling one closes its connection, which is how engines are told. One
// thread of its own does all of it, and asks after the engine's health every second.
class ForeignSource final : public recipe::TokenSource {
 public:
  // `tokenizer` is of the engine's model. All of the references outlive the source. Error:
  // kInvalidArgument, a URL that is none or has a password.
  static Result<std::unique_ptr<ForeignSource>> create(
      std::unique_ptr<const Dialect> dialect,
      std::shared_ptr<const recipe::Tokenizer> tokenizer,
      const Clock& clock,
      Metrics& metrics,
      Log& log,
      ForeignOptions options);
  ~ForeignSource() override;
  ForeignSource(const ForeignSource&) = delete;
  ForeignSource& operator=(const ForeignSource&) = delete;

  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink) override;
  // The engine answered when it was last asked, or has sent tokens since.
  [[nodiscard]] bool ready() const override;
  [[nodiscard]] std::string_view description() const override;

 private:
  class Impl;
  explicit ForeignSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::gateway
