#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/real_clock.h"
#include "base/result.h"
#include "bindings/c/boundary.h"
#include "bindings/common/session.h"
#include "bindings/common/vocabulary.h"
#include "galley/recipe.h"
#include "recipe/event.h"
#include "recipe/output_parser.h"

namespace recipe = galley::recipe;
using galley::Code;
using galley::Error;
using galley::Result;
using namespace galley::bindings;  // the boundary's helpers, in this file only

namespace {

Dialect dialect_of(const galley_reply* reply) {
  return reply == nullptr
             ? Dialect{}
             : Dialect{reply->session->request().protocol, reply->session->request().compat};
}

// One step of a reply: clears what the step before it made, runs `step`, lends what it made.
template <class Step>
galley_code advance(galley_reply* reply,
                    galley_slice* bytes,
                    galley_error** error,
                    const Step& step) noexcept {
  return guarded(error, dialect_of(reply), [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(reply != nullptr, "reply is NULL"));
    GALLEY_CHECK_OK(require(bytes != nullptr, "bytes is NULL"));
    reply->session->bytes().clear();
    GALLEY_CHECK_OK(step(*reply->session));
    *bytes = slice(reply->session->bytes());
    return {};
  });
}

}  // namespace

galley_code galley_reply_create(const galley_request* request,
                                const galley_tokenizer* tokenizer,
                                const galley_reply_options* options,
                                galley_reply** out,
                                galley_error** error) {
  return guarded(error, dialect_of(request), [&]() -> Result<void> {
    GALLEY_CHECK_OK(require(request != nullptr, "request is NULL"));
    GALLEY_CHECK_OK(require(out != nullptr, "out is NULL"));
    GALLEY_TRY(const galley_reply_options chosen, read_struct(options));
    SessionOptions session;
    switch (chosen.stream) {
      case GALLEY_STREAM_AS_ASKED:
        break;
      case GALLEY_STREAM_ON:
      case GALLEY_STREAM_OFF:
        session.stream = chosen.stream == GALLEY_STREAM_ON;
        break;
      default:
        return misuse("no such stream mode: " + std::to_string(chosen.stream));
    }
    GALLEY_TRY(session.usage_chunk, flag_of(chosen.usage_chunk));
    GALLEY_TRY(session.id, view(chosen.id, chosen.id_size, "id"));
    if (chosen.created_s != 0) {
      session.created_s = chosen.created_s;
    }
    if (chosen.id_seed != 0) {
      session.id_seed = galley::Seed(chosen.id_seed);
    }
    static const galley::RealClock clock;
    *out = new galley_reply{std::make_unique<Session>(
        request->request, tokenizer == nullptr ? nullptr : tokenizer->vocabulary->tokenizer(),
        std::move(session), clock)};
    return {};
  });
}

void galley_reply_free(galley_reply* reply) {
  delete reply;
}

galley_code galley_reply_start(galley_reply* reply,
                               std::int64_t prompt_tokens,
                               std::int64_t cached_tokens,
                               const char* fingerprint,
                               std::size_t fingerprint_size,
                               galley_slice* bytes,
                               galley_error** error) {
  return advance(reply, bytes, error, [&](Session& session) -> Result<void> {
    GALLEY_TRY(const std::string_view text, view(fingerprint, fingerprint_size, "fingerprint"));
    recipe::Started started{
        .prompt_tokens = prompt_tokens, .cached_tokens = cached_tokens, .fingerprint = {}};
    if (fingerprint != nullptr) {
      started.fingerprint.emplace(text);
    }
    return session.start(started);
  });
}

galley_code galley_reply_feed_ids(galley_reply* reply,
                                  const std::uint32_t* ids,
                                  std::size_t id_count,
                                  const galley_logprob* logprobs,
                                  galley_slice* bytes,
                                  galley_error** error) {
  return advance(reply, bytes, error, [&](Session& session) -> Result<void> {
    GALLEY_TRY(const std::span<const galley::TokenId> tokens, array(ids, id_count, "ids"));
    std::vector<IdLogprob> converted;
    if (logprobs != nullptr) {
      for (const galley_logprob& logprob : std::span(logprobs, id_count)) {
        GALLEY_TRY(const std::span<const galley_top_logprob> top,
                   array(logprob.top, logprob.top_count, "top"));
        auto& entry = converted.emplace_back(IdLogprob{logprob.logprob, {}});
        for (const galley_top_logprob& candidate : top) {
          entry.top.emplace_back(candidate.id, candidate.logprob);
        }
      }
    }
    return session.feed_tokens(tokens, converted);
  });
}

galley_code galley_reply_feed_text(galley_reply* reply,
                                   const char* text,
                                   std::size_t text_size,
                                   std::int64_t token_count,
                                   galley_slice* bytes,
                                   galley_error** error) {
  return advance(reply, bytes, error, [&](Session& session) -> Result<void> {
    GALLEY_TRY(const std::string_view piece, view(text, text_size, "text"));
    return session.feed_text(piece, token_count);
  });
}

std::int32_t galley_reply_finished(const galley_reply* reply) {
  return reply != nullptr && reply->session->finished() ? 1 : 0;
}

galley_code galley_reply_finish(galley_reply* reply,
                                galley_finish reason,
                                galley_slice* bytes,
                                galley_error** error) {
  return advance(reply, bytes, error, [&](Session& session) -> Result<void> {
    if (reason == GALLEY_FINISH_NONE) {
      return session.finish(std::nullopt);
    }
    GALLEY_TRY(const recipe::SourceFinish why,
               enum_of(reason, recipe::SourceFinish::kContentFilter, "finish reason"));
    return session.finish(why);
  });
}

galley_code galley_reply_fail(galley_reply* reply,
                              galley_code code,
                              const char* message,
                              std::size_t message_size,
                              galley_slice* bytes,
                              galley_error** error) {
  return advance(reply, bytes, error, [&](Session& session) -> Result<void> {
    GALLEY_TRY(const Code kind, code_from(code));
    GALLEY_TRY(const std::string_view text, view(message, message_size, "message"));
    return session.fail(Error{kind, std::string(text), {}});
  });
}

galley_code galley_reply_keep_alive(galley_reply* reply,
                                    galley_slice* bytes,
                                    galley_error** error) {
  return advance(reply, bytes, error, [](Session& session) { return session.keep_alive(); });
}
