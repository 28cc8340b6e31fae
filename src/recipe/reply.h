#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "recipe/event.h"
#include "recipe/request.h"

// Events -> bytes of the protocols, streamed (SSE) or whole (spec
// recipe 6.1, 6.3, 6.5, 6.7 to 6.9).
namespace galley::recipe {

// Random part of generated ids: 20 characters of [A-Za-z0-9]. An interface so that tests and
// simulation repeat.
class IdSource {
 public:
  virtual ~IdSource() = default;
  virtual std::string next_id() = 0;
};

// The answers to a request that wants several. Each has an encoder of its own, of the same id and
// time; who ends last says what is said once.
class Choices {
 public:
  explicit Choices(std::size_t count) : texts_(count), left_(count) {}
  // Answer `index` is over. `text`: its element of a whole reply. False while others go on.
  bool end(std::size_t index, std::string text, const Usage& usage);
  // Elements, with commas.
  [[nodiscard]] std::string texts() const;
  // The prompt counts once, and what of it was in the cache is what the first answer found there.
  [[nodiscard]] const Usage& usage() const { return usage_; }

 private:
  std::vector<std::string> texts_;
  std::size_t left_;
  Usage usage_;
};

struct ReplyInfo {
  std::string id;            // what new_reply_id() made
  std::int64_t created_s{};  // Unix time
  IdSource* call_ids{};      // not owned, never null
  // Says when a Response was completed. Not owned; null: when it was created.
  const Clock* clock = nullptr;
  // Chat Completions and Completions: which of several answers. Not owned; null: there is one.
  std::size_t choice = 0;
  Choices* choices = nullptr;
  // Chat: one extra chunk with empty `choices` as OpenAI sends it (spec 6.3).
  bool usage_chunk = false;
};

// One reply as server-sent events. Appends whole frames to `out`; the caller sends and clears it.
class StreamEncoder : public EventSink {
 public:
  // `out` must outlive the encoder.
  static std::unique_ptr<StreamEncoder> create(const Request& request,
                                               ReplyInfo info,
                                               std::string& out);
  // The protocol's own way to break a stream after its first byte (spec 6.8); ends it, without
  // [DONE].
  virtual void fail(const Error& error) = 0;
  // A frame every client ignores, for long waits (spec 6.0).
  virtual void keep_alive() = 0;
  // After Finished: the reply as the object that was not streamed. Empty in protocols whose replies
  // are not kept.
  [[nodiscard]] virtual std::string whole() const { return {}; }
};

// One reply as a JSON object.
class WholeEncoder : public EventSink {
 public:
  static std::unique_ptr<WholeEncoder> create(const Request& request, ReplyInfo info);
  // After Finished.
  [[nodiscard]] virtual std::string body() = 0;
};

// Error body of a protocol and the HTTP status that goes with a code (spec 6.8).
[[nodiscard]] int http_status(Code code);
[[nodiscard]] std::string error_body(Protocol protocol, Compat compat, const Error& error);

}  // namespace galley::recipe
